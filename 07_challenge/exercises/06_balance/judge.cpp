#include "06_balance.hpp"

#include "bench.hpp"

namespace manyranks {

namespace {
// The least that the slowest stage can take: the smallest limit for which filling each stage up to it needs no more than `stages`.
double best_slowest(const std::vector<double>& costs, int stages) {
  const auto fits = [&](double limit) {
    int used = 1;
    double filled = 0;
    for (const double c : costs) {
      if (c > limit) return false;
      if (filled + c > limit) ++used, filled = 0;
      filled += c;
    }
    return used <= stages;
  };
  double low = 0, high = 0;
  for (const double c : costs) high += c;
  for (int i = 0; i < 200; ++i) (fits((low + high) / 2) ? high : low) = (low + high) / 2;
  return high;
}

bool try_model(Bench& bench, decltype(balance)* cut, const char* hidden, const std::vector<float>& truth, int stages, uint64_t seed) {
  // Each rank's clock is off by up to a quarter, in its own way; whole microseconds, so that sums are exact.
  const int p = bench.size();
  std::vector<double> mean(truth.size());
  std::vector<float> mine;
  for (int r = 0; r < p; ++r) {
    Random random(seed * 100 + static_cast<uint64_t>(r));
    std::vector<float> measured;
    for (const float c : truth) measured.push_back(std::ceil(c * (1 + random.uniform() / 4)));
    for (size_t i = 0; i < truth.size(); ++i) mean[i] += measured[i] / p;
    if (r == bench.rank()) mine = measured;
  }
  std::vector<int> units;
  const auto name = [&](const char* check) { return *hidden ? hidden : check; };
  bench.learner(name("valid"), [&] { cut(bench.ranks(), mine, stages, units); });
  const std::string what = text("%zu units, %d stages: ", truth.size(), stages);
  const bool counts_right = static_cast<int>(units.size()) == stages && std::all_of(units.begin(), units.end(), [](int u) { return u >= 1; }) &&
                            std::accumulate(units.begin(), units.end(), size_t{0}) == truth.size();
  if (!bench.require(name("valid"), counts_right, what + text("%zu stages were given, with %d units in all; each needs at least one, together they have all", units.size(), std::accumulate(units.begin(), units.end(), 0)))) return false;
  std::vector<float> flat(units.begin(), units.end());
  const auto all = bench.collect(flat);
  bool same = true;
  for (size_t i = 0; i < all.size(); ++i) same = same && all[i] == flat[i % flat.size()];
  if (!bench.require(name("agree"), same, what + "the ranks cut in different places")) return false;
  double slowest = 0;
  size_t at = 0;
  for (const int u : units) {
    double stage = 0;
    for (int i = 0; i < u; ++i) stage += mean[at++];
    slowest = std::max(slowest, stage);
  }
  const double best = best_slowest(mean, stages);
  const bool even = *std::max_element(units.begin(), units.end()) - *std::min_element(units.begin(), units.end()) <= 1;
  const bool good = bench.require(name("best"), slowest <= best * (1 + 1e-6), what + text("the slowest stage takes %.6g us, it can be %.6g", slowest, best), even ? "equal_count" : "");
  bench.require("calls", bench.counts().collectives <= 1 && bench.counts().messages == 0, text("%ld collectives and %ld messages, where one collective is enough", static_cast<long>(bench.counts().collectives), static_cast<long>(bench.counts().messages)));
  return good;
}
}  // namespace

void judge_06_balance(Bench& bench) {
  auto* cut = bench.entry<decltype(balance)>("balance");
  if (!try_model(bench, cut, "", {30, 100, 100, 100, 100, 100, 100, 100, 100, 220}, 4, 1)) return;  // an embedding, eight blocks, a head
  if (!try_model(bench, cut, "", {10, 10, 10, 10, 300, 10, 10, 10, 60, 60}, 3, 2)) return;
  Random random(bench.seed());
  for (int i = 0; i < 8; ++i) {
    const int stages = i == 0 ? 1 : static_cast<int>(2 + random.below(15)), n = i == 1 ? stages : i == 2 ? 200 : stages + static_cast<int>(random.below(100));
    std::vector<float> truth;
    for (int u = 0; u < n; ++u) truth.push_back(random.below(10) == 0 ? static_cast<float>(500 + random.below(2000)) : static_cast<float>(10 + random.below(200)));
    if (!try_model(bench, cut, "hidden", truth, stages, bench.seed() + static_cast<uint64_t>(i))) return;
  }
}

}  // namespace manyranks
