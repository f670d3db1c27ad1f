#include "01_fused_step.hpp"

#include "bench.hpp"

namespace manyranks {

namespace {
bool try_step(Bench& bench, decltype(sgd_step)* step, const char* check, size_t n, const SgdSettings& s, uint64_t seed) {
  Random random(seed * 64 + static_cast<uint64_t>(bench.rank()));  // ranks have different numbers: each holds its own shard
  std::vector<float> p(n), v(n), g(n);
  for (auto* array : {&p, &v, &g})
    for (auto& x : *array) x = random.uniform() * 2 - 1;
  std::vector<float> want_p = p, want_v = v;
  for (size_t i = 0; i < n; ++i) {
    want_v[i] = s.momentum * v[i] + (g[i] * s.gradient_scale + s.weight_decay * p[i]);
    want_p[i] = p[i] - s.learning_rate * want_v[i];
  }
  Array parameters(p), velocity(v), gradients(g);
  bench.learner(check, [&] { step(parameters, velocity, gradients, s); });
  if (!bench.require(check, first_difference(v, want_v, 1e-5f) < 0, difference("velocity", v, want_v, 1e-5f))) return false;
  if (!bench.require(check, first_difference(p, want_p, 1e-5f) < 0, difference("parameters", p, want_p, 1e-5f))) return false;
  const bool zero = std::all_of(g.begin(), g.end(), [](float x) { return x == 0; });
  if (!bench.require(check, zero, "parameters and velocity are right, but the gradients are not zero afterwards", "zeroed")) return false;
  const int64_t loads = parameters.loads + velocity.loads + gradients.loads, stores = parameters.stores + velocity.stores + gradients.stores;
  const auto most = static_cast<int64_t>(3 * n);
  bench.require("traffic", loads <= most && stores <= most,
                text("%ld loads and %ld stores for %zu elements, where %ld of each are enough", static_cast<long>(loads), static_cast<long>(stores), n, static_cast<long>(most)));
  bench.require("memory", bench.peak_bytes() == 0, text("%ld bytes were taken from the heap", static_cast<long>(bench.peak_bytes())));
  return true;
}
}  // namespace

void judge_01_fused_step(Bench& bench) {
  auto* step = bench.entry<decltype(sgd_step)>("sgd_step");
  if (!try_step(bench, step, "result", 1000, {0.1f, 0.9f, 0.01f, 1.0f / static_cast<float>(bench.size())}, 1)) return;
  Random random(bench.seed());
  for (int i = 0; i < 4; ++i) {
    const SgdSettings settings{random.uniform(), i == 1 ? 0.0f : random.uniform(), i == 2 ? 0.0f : random.uniform(), 0.25f + random.uniform()};
    const size_t n = i == 3 ? 0 : static_cast<size_t>(1 + random.below(3000));
    if (!try_step(bench, step, "hidden", n, settings, bench.seed() + static_cast<uint64_t>(i))) return;
  }
}

}  // namespace manyranks
