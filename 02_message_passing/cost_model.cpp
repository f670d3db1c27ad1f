#include "cost_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "launch/errors.hpp"
#include "measure/table.hpp"  // format_bytes

namespace manyranks {
namespace {

struct Line {
  double a, b, error;
};

// Least squares of the relative error, so that small and large messages count alike. a and b are not negative.
Line fit(const Point* begin, const Point* end) {
  double s1 = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
  for (const Point* p = begin; p != end; ++p) {
    const double w = 1 / (p->seconds * p->seconds);
    s1 += w, sx += w * p->bytes, sxx += w * p->bytes * p->bytes, sy += w * p->seconds, sxy += w * p->bytes * p->seconds;
  }
  const double determinant = s1 * sxx - sx * sx;
  double b = determinant > 0 ? (s1 * sxy - sx * sy) / determinant : 0, a = (sy - b * sx) / s1;
  if (b < 0) b = 0, a = sy / s1;
  if (a < 0) a = 0, b = sxy / sxx;
  double error = 0;
  for (const Point* p = begin; p != end; ++p) error += std::pow((a + b * p->bytes) / p->seconds - 1, 2);
  return {a, b, error};
}

}  // namespace

// Tries every way to cut the points into up to four ranges of at least three points, and keeps the one with the smallest error.
PiecewiseLine::PiecewiseLine(std::vector<Point> points) {
  if (points.size() < 3) throw usage_error("fitting a cost model", "needs three sizes or more");
  std::sort(points.begin(), points.end(), [](const Point& x, const Point& y) { return x.bytes < y.bytes; });
  const size_t n = points.size(), least = 3;
  const Point* p = points.data();
  double best = std::numeric_limits<double>::infinity();
  const auto consider = [&](std::vector<size_t> ends) {
    std::vector<Piece> pieces;
    double error = 0;
    size_t begin = 0;
    for (const size_t end : ends) {
      const Line line = fit(p + begin, p + end);
      error += line.error;
      pieces.push_back({end == n ? std::numeric_limits<double>::infinity() : std::sqrt(p[end - 1].bytes * p[end].bytes), line.a, line.b});
      begin = end;
    }
    if (error < best) best = error, pieces_ = pieces;
  };
  consider({n});
  for (size_t i = least; i + least <= n; ++i) {
    consider({i, n});
    for (size_t j = i + least; j + least <= n; ++j) {
      consider({i, j, n});
      for (size_t k = j + least; k + least <= n; ++k) consider({i, j, k, n});
    }
  }
}

double PiecewiseLine::operator()(double bytes) const {
  for (const Piece& piece : pieces_)
    if (bytes <= piece.up_to) return piece.a + bytes * piece.b;
  return 0;
}

std::string PiecewiseLine::text() const {
  std::string text;
  for (const Piece& piece : pieces_) {
    const std::string range = std::isinf(piece.up_to) ? (pieces_.size() == 1 ? "all sizes" : "above") : "up to " + format_bytes(static_cast<int64_t>(piece.up_to));
    text += fmt::format("{}{}: {:.2f} us + {:.3f} ns/B", text.empty() ? "" : "; ", range, piece.a * 1e6, piece.b * 1e9);
  }
  return text;
}

double Step::operator()(double bytes, double ranks_on_core) const {
  const double free = alone(bytes);
  if (!crowded || ranks_on_core <= 1) return free;
  return free + std::max(0.0, (*crowded)(bytes)-free) * (ranks_on_core - 1) / (crowd - 1);
}

double CostModel::ring(double n, int p) const {
  if (p == 1) return 0;
  return (p - 1) * (add(n / p, load(p)) + pass(n / p, load(p)));
}

double CostModel::recursive_doubling(double n, int p) const {
  const int players = static_cast<int>(std::bit_floor(static_cast<unsigned>(p))), rounds = std::countr_zero(static_cast<unsigned>(players));
  const double fold = players == p ? 0 : add(n, load(p)) + pass(n, load(p));
  return rounds * add(n, load(p)) + fold;
}

double CostModel::rabenseifner(double n, int p) const {
  const int players = static_cast<int>(std::bit_floor(static_cast<unsigned>(p)));
  double total = players == p ? 0 : add(n, load(p)) + pass(n, load(p));
  for (int parts = 2; parts <= players; parts *= 2) total += add(n / parts, load(p)) + pass(n / parts, load(p));
  return total;
}

double TwoLevelModel::ring(double n) const {
  const int p = nodes * per_node;
  return 2 * (p - 1) * link(n / p);
}

double TwoLevelModel::two_level(double n) const {
  const double between = 2 * (nodes - 1) * link(n / nodes);  // g ranks x n/(g k) bytes each, on one link
  return inside.ring(n, per_node) + between;
}

}  // namespace manyranks
