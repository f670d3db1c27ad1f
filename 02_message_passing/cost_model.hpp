// The cost model: what one message and one addition cost on this machine, and from that what every algorithm costs.
#pragma once

#include <cmath>
#include <string>
#include <vector>

namespace manyranks {

struct Point {
  double bytes, seconds;
};

// seconds = a + bytes * b in each of a few ranges of size: a message that fits the eager buffer, one that fits the cache and
// one that does not are different things.
class PiecewiseLine {
 public:
  explicit PiecewiseLine(std::vector<Point> points);
  double operator()(double bytes) const;
  std::string text() const;  // "up to 4.0 KiB: 0.9 us + 0.30 ns/B; ..."

 private:
  struct Piece {
    double up_to, a, b;
  };
  std::vector<Piece> pieces_;
};

// exchange(n): all ranks send n bytes to a neighbour and receive as many, at once. add(n): adding n bytes to n bytes.
// contention: how much longer both take when p ranks share fewer cores: 1 + slope * (p/cores - 1).
struct CostModel {
  PiecewiseLine exchange, add;
  double cores = 1, contention_slope = 0;
  double contention(int ranks) const { return 1 + contention_slope * std::max(0.0, ranks / cores - 1); }

  double ring(double n, int p) const;                // 2(p-1) exchanges of n/p, p-1 additions of n/p
  double recursive_doubling(double n, int p) const;  // log2 p exchanges and additions of n (+ folding)
  double rabenseifner(double n, int p) const;        // exchanges and additions of n/2, n/4, ... and back
};

}  // namespace manyranks
