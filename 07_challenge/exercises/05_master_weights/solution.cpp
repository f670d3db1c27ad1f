// Exercise: master weights. Lesson: 05_mixed_precision/03_master_weights.cpp
//
// bf16 has 8 significant bits: near 1 its numbers are 1/128 apart. A training step moves a weight by far less, so in bf16 alone it does not move
// at all: 1 - 0.001 is 1 again, a thousand times over. The remedy is an fp32 copy, the master, which collects the small steps; the bf16 weights are
// its rounded image. And rounding has to be fair: cutting bits off makes every number smaller in magnitude, always in the same direction.
#include "05_master_weights.hpp"  // bf16, from_bf16

#include <cmath>

using namespace manyranks;

bf16 manyranks::to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  // <<< todo
  // Cutting off is not rounding. To the nearest; of two equally near, to the one whose last bit is 0. NaN must stay NaN.
  // <<< until then
  // return static_cast<bf16>(bits >> 16);
  // <<< solution
  if (std::isnan(x)) return static_cast<bf16>(bits >> 16 | 0x40);  // the bits that say NaN may be in the lower half: set one that stays
  const uint32_t last = bits >> 16 & 1;                            // half of a unit, less a little if the number below is even
  return static_cast<bf16>((bits + 0x7fff + last) >> 16);
  // >>>
}

void manyranks::mixed_step(std::span<float> master, std::span<bf16> weights, std::span<const bf16> gradients, float rate) {
  // <<< todo
  // The weights below stand still when the steps are small. Let the master do the walking.
  // <<< until then
  // (void)master;
  // for (size_t i = 0; i < weights.size(); ++i) weights[i] = to_bf16(from_bf16(weights[i]) - rate * from_bf16(gradients[i]));
  // <<< solution
  for (size_t i = 0; i < weights.size(); ++i) {
    master[i] -= rate * from_bf16(gradients[i]);
    weights[i] = to_bf16(master[i]);
  }
  // >>>
}
