#include "04_place_all_reduce.hpp"

#include "bench.hpp"

namespace manyranks {

namespace {
bool try_block(Bench& bench, decltype(parallel_mlp)* mlp, const char* check, size_t n, size_t k, size_t part, uint64_t seed) {
  const int p = bench.size();
  auto x = whole_numbers(n * k, seed * 1000, 4);
  const auto b2 = whole_numbers(k, seed * 1000 + 1, 4);
  const auto draw = [&](int r, int what, size_t count) { return whole_numbers(count, seed * 1000 + static_cast<uint64_t>(10 * r + what), 4); };
  std::vector<float> want(n * k), share(n * k), hidden(n * part), got(n * k, -1);
  for (int r = 0; r < p; ++r) {
    auto w1 = draw(r, 12, k * part), b1 = draw(r, 13, part), w2 = draw(r, 14, part * k);
    multiply({n, part, hidden}, {n, k, x}, {k, part, w1});
    for (size_t i = 0; i < n * part; ++i) hidden[i] = std::max(0.0f, hidden[i] + b1[i % part]);
    multiply({n, k, share}, {n, part, hidden}, {part, k, w2});
    for (size_t i = 0; i < n * k; ++i) want[i] += share[i];
  }
  for (size_t i = 0; i < n * k; ++i) want[i] += b2[i % k];
  auto w1 = draw(bench.rank(), 12, k * part), w2 = draw(bench.rank(), 14, part * k);
  const auto b1 = draw(bench.rank(), 13, part);
  bench.learner(check, [&] { mlp(bench.ranks(), {n, k, x}, {k, part, w1}, b1, {part, k, w2}, b2, {n, k, got}); });
  std::vector<float> bias_each(want);
  for (size_t i = 0; i < n * k; ++i) bias_each[i] += static_cast<float>(p - 1) * b2[i % k];
  const bool too_often = p > 1 && first_difference(got, bias_each) < 0;
  if (!bench.require(check, first_difference(got, want) < 0, text("%zu x %zu, %zu hidden units per rank: ", n, k, part) + difference("output", got, want), too_often ? "bias" : "")) return false;
  bench.require_one_all_reduce(n * k);
  return true;
}
}  // namespace

void judge_04_place_all_reduce(Bench& bench) {
  auto* mlp = bench.entry<decltype(parallel_mlp)>("parallel_mlp");
  if (!try_block(bench, mlp, "result", 64, 96, 4, 1)) return;
  Random random(bench.seed());
  for (int i = 0; i < 3; ++i)
    if (!try_block(bench, mlp, "hidden", static_cast<size_t>(i == 0 ? 1 : 2 + random.below(9)), static_cast<size_t>(2 + random.below(9)), static_cast<size_t>(i == 1 ? 1 : 1 + random.below(12)), bench.seed() + static_cast<uint64_t>(i))) return;
}

}  // namespace manyranks
