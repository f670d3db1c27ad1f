#pragma once

#include <bit>

#include "kit.hpp"

namespace manyranks {

// bfloat16 is the upper half of a float: sign, 8 bits of exponent, 7 of the 23 bits behind the point.
using bf16 = uint16_t;
inline float from_bf16(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

extern "C" bf16 to_bf16(float x);

// One SGD step on the weights that the model computes with. `master` is all that lives in fp32 from step to step.
extern "C" void mixed_step(std::span<float> master, std::span<bf16> weights, std::span<const bf16> gradients, float rate);

}  // namespace manyranks
