#include "05_master_weights.hpp"

#include <limits>

#include "bench.hpp"

namespace manyranks {

namespace {
// The nearest of the two neighbours, found by distance, in double.
bf16 nearest(float x, bool& tie) {
  const auto low = static_cast<bf16>(std::bit_cast<uint32_t>(x) >> 16), high = static_cast<bf16>(low + 1);  // towards zero, away from it
  const double below = std::fabs(static_cast<double>(x) - from_bf16(low));
  // Beyond the largest number the next one would be 2^128.
  const double above = std::fabs((std::isinf(from_bf16(high)) ? std::copysign(std::ldexp(1.0, 128), x) : static_cast<double>(from_bf16(high))) - x);
  tie = below == above;
  return tie ? (low & 1 ? high : low) : below < above ? low : high;
}

float draw(Random& random, bool tie) {
  uint32_t bits;
  do bits = static_cast<uint32_t>(random.next()); while ((bits >> 23 & 0xff) == 0xff);  // not inf or NaN
  return std::bit_cast<float>(tie ? (bits & 0xffff0000u) | 0x8000u : bits);
}

bool try_rounding(Bench& bench, decltype(to_bf16)* round, const char* check, bool ties, uint64_t seed) {
  Random random(seed * 64 + static_cast<uint64_t>(bench.rank()));
  constexpr int count = 20000;
  int wrong = 0;
  std::string seen;
  bench.learner(check, [&] {
    for (int i = 0; i < count; ++i) {
      const float x = draw(random, ties);
      bool tie = false;
      const bf16 want = nearest(x, tie), got = round(x);
      if ((tie && !ties) || got == want) continue;
      if (++wrong == 1) seen = text("%.9g became %.9g, %s is %.9g", x, from_bf16(got), tie ? "half-way, so the even neighbour" : "the nearest", from_bf16(want));
    }
  });
  return bench.require(check, wrong == 0, seen + text(" (%d of %d)", wrong, count));
}

bool try_special(Bench& bench, decltype(to_bf16)* round) {
  using limits = std::numeric_limits<float>;
  std::string seen;
  bench.learner("special", [&] {
    for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xff80ffffu, 0x7fffffffu, 0xffffffffu})
      if (!std::isnan(from_bf16(round(std::bit_cast<float>(bits))))) seen = text("the NaN with bits %08x became %g", bits, from_bf16(round(std::bit_cast<float>(bits))));
    for (const float x : {limits::infinity(), -limits::infinity(), 0.0f, -0.0f})
      if (std::bit_cast<uint32_t>(from_bf16(round(x))) != std::bit_cast<uint32_t>(x)) seen = text("%g became %g", x, from_bf16(round(x)));
    if (!std::isinf(from_bf16(round(limits::max())))) seen = text("the largest float became %g; its nearest bf16 is inf", from_bf16(round(limits::max())));
  });
  return bench.require("special", seen.empty(), seen);
}

bool try_steps(Bench& bench, decltype(to_bf16)* round, decltype(mixed_step)* step, const char* check, float rate, int steps, uint64_t seed) {
  Random random(seed * 64 + static_cast<uint64_t>(bench.rank()));
  constexpr size_t n = 64;
  std::vector<float> master(n);
  std::vector<double> want(n);
  std::vector<bf16> weights(n), gradients(n);
  for (size_t i = 0; i < n; ++i) want[i] = master[i] = 1 + random.uniform(), weights[i] = round(master[i]);
  const auto start = weights;
  bench.learner(check, [&] {
    for (int s = 0; s < steps; ++s) {
      for (size_t i = 0; i < n; ++i) {
        gradients[i] = static_cast<bf16>(std::bit_cast<uint32_t>(0.5f + random.uniform()) >> 16);
        want[i] -= static_cast<double>(rate) * from_bf16(gradients[i]);
      }
      step(master, weights, gradients, rate);
    }
  });
  std::string seen;
  for (size_t i = 0; i < n; ++i)  // half a unit of bf16, and what fp32 itself loses in so many steps
    if (!(std::fabs(from_bf16(weights[i]) - want[i]) <= std::fabs(want[i]) / 256 + 1e-6 * steps) && seen.empty())
      seen = text("after %d steps of about %g weight %zu is %.7g, in exact arithmetic %.7g", steps, rate, i, from_bf16(weights[i]), want[i]);
  const bool stuck = weights == start;
  return bench.require(check, seen.empty(), seen + (stuck ? ": no weight has moved" : ""), stuck ? "stuck" : "");
}
}  // namespace

void judge_05_master_weights(Bench& bench) {
  auto* round = bench.entry<decltype(to_bf16)>("to_bf16");
  auto* step = bench.entry<decltype(mixed_step)>("mixed_step");
  const bool fair = try_rounding(bench, round, "rounding", false, bench.seed());
  if (fair) try_rounding(bench, round, "ties", true, bench.seed());
  if (fair) try_special(bench, round);
  if (!try_steps(bench, round, step, "small_steps", 1e-4f, 1000, 1) || !fair) return;
  Random random(bench.seed());
  for (int i = 0; i < 3; ++i)
    if (!try_steps(bench, round, step, "hidden", 1e-3f * (0.05f + random.uniform()), 200 + static_cast<int>(random.below(600)), bench.seed() + static_cast<uint64_t>(i))) return;
}

}  // namespace manyranks
