#include "04_column_backward.hpp"

#include "bench.hpp"

namespace manyranks {

namespace {
bool try_shape(Bench& bench, decltype(column_backward)* backward, const char* hidden, size_t n, size_t k, size_t part, uint64_t seed) {
  const int p = bench.size(), rank = bench.rank();
  const auto mine = static_cast<uint64_t>(rank);
  auto x = whole_numbers(n * k, seed * 1000);
  const auto weight_of = [&](uint64_t r) { return whole_numbers(k * part, seed * 1000 + 1 + r); };
  const auto output_of = [&](uint64_t r) { return whole_numbers(n * part, seed * 1000 + 100 + r); };
  std::vector<float> want_input(n * k), share(n * k), want_weight(k * part), grad_input(n * k, -1), grad_weight(k * part, -1), partial(n * k);
  for (uint64_t r = 0; r < static_cast<uint64_t>(p); ++r) {
    auto w = weight_of(r), gy = output_of(r);
    multiply_second_transposed({n, k, share}, {n, part, gy}, {k, part, w});
    for (size_t i = 0; i < share.size(); ++i) want_input[i] += share[i];
    if (r == mine) partial = share;
    if (r == mine) multiply_first_transposed({k, part, want_weight}, {n, k, x}, {n, part, gy});
  }
  auto w = weight_of(mine), gy = output_of(mine);
  const auto before = x;
  bench.learner(*hidden ? hidden : "weight_gradient", [&] { backward(bench.ranks(), {n, k, x}, {k, part, w}, {n, part, gy}, {n, k, grad_input}, {k, part, grad_weight}); });
  const auto name = [&](const char* check) { return *hidden ? hidden : check; };
  const std::string shape = text("%zu x %zu, %zu columns per rank: ", n, k, part);
  const bool weight_right = first_difference(grad_weight, want_weight) < 0, input_right = first_difference(grad_input, want_input) < 0;
  bool good = bench.require(name("weight_gradient"), weight_right, shape + difference("grad_weight", grad_weight, want_weight), p > 1 && first_difference(grad_weight, std::vector<float>(k * part, -1)) >= 0 ? "weight_touched" : "");
  good &= bench.require(name("input_gradient"), input_right, shape + difference("grad_input", grad_input, want_input), p > 1 && first_difference(grad_input, partial) < 0 ? "partial" : "");
  good &= bench.require(name("weight_gradient"), x == before && w == weight_of(mine) && gy == output_of(mine), "an input matrix was written to");
  if (!good) return false;
  bench.require_one_all_reduce(n * k);
  return true;
}
}  // namespace

void judge_04_column_backward(Bench& bench) {
  auto* backward = bench.entry<decltype(column_backward)>("column_backward");
  if (!try_shape(bench, backward, "", 64, 96, 5, 1)) return;
  Random random(bench.seed());
  for (int i = 0; i < 3; ++i)
    if (!try_shape(bench, backward, "hidden", static_cast<size_t>(i == 0 ? 1 : 1 + random.below(12)), static_cast<size_t>(1 + random.below(20)), static_cast<size_t>(i == 1 ? 1 : 1 + random.below(9)), bench.seed() + static_cast<uint64_t>(i))) return;
}

}  // namespace manyranks
