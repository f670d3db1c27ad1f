#include "03_averaging.hpp"

#include <limits>

#include "bench.hpp"

namespace manyranks {

namespace {
bool try_shares(Bench& bench, decltype(average_gradients)* average, const char* check, size_t n, const std::vector<int64_t>& samples, uint64_t seed) {
  const int p = bench.size(), rank = bench.rank();
  std::vector<double> sum(n);
  std::vector<float> mine, want(n), unweighted(n);
  double all = 0;
  for (int r = 0; r < p; ++r) {
    auto mean = whole_numbers(n, seed * 100 + static_cast<uint64_t>(r));
    for (size_t i = 0; i < n; ++i) sum[i] += mean[i] * static_cast<double>(samples[r]), unweighted[i] += mean[i] / static_cast<float>(p);
    all += static_cast<double>(samples[r]);
    if (samples[r] == 0) std::fill(mean.begin(), mean.end(), std::numeric_limits<float>::quiet_NaN());
    if (r == rank) mine = mean;
  }
  for (size_t i = 0; i < n; ++i) want[i] = static_cast<float>(sum[i] / std::max(all, 1.0));
  bench.learner(check, [&] { average(bench.ranks(), mine, samples[rank]); });
  std::string shares;
  for (const auto s : samples) shares += (shares.empty() ? "" : ", ") + std::to_string(s);
  const bool is_unweighted = first_difference(mine, unweighted, 1e-5f) < 0;
  if (!bench.require(check, first_difference(mine, want, 1e-5f) < 0, difference(("shares of " + shares + " samples: gradients").c_str(), mine, want, 1e-5f), is_unweighted ? "unweighted" : "")) return false;
  bench.require_one_all_reduce(n + 1);
  return true;
}
}  // namespace

void judge_03_averaging(Bench& bench) {
  auto* average = bench.entry<decltype(average_gradients)>("average_gradients");
  const int p = bench.size();
  std::vector<int64_t> samples(static_cast<size_t>(p), 8);
  samples.back() = 1;
  if (!try_shares(bench, average, "result", 100000, samples, 1)) return;
  Random random(bench.seed());
  for (int i = 0; i < 3; ++i) {
    for (auto& s : samples) s = 1 + random.below(64);
    if (!try_shares(bench, average, "result", static_cast<size_t>(1 + random.below(2000)), samples, bench.seed() + static_cast<uint64_t>(i))) return;
  }
  // The last rank has run out of samples; then another one; then all.
  for (const int r : {p - 1, static_cast<int>(random.below(p)), -1}) {
    for (int i = 0; i < p; ++i) samples[static_cast<size_t>(i)] = r < 0 || i == r ? 0 : 1 + random.below(64);
    if (!try_shares(bench, average, "empty_share", static_cast<size_t>(1 + random.below(500)), samples, bench.seed() + 10)) return;
  }
}

}  // namespace manyranks
