// GELU in GPT-2's form, x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), of one element. It is x / (1 + e^-2u): one exponential
// and one division, where the tanh form takes a tanh and cancels where x < 0. Fused multiply-adds only where written (std::fma): the same
// bits in a vector body, in its tail and on every CPU, so that a part of a cut layer has the bits of the whole.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/functors.hpp"  // MANYRANKS_HD

namespace manyranks::kernels {

struct Gelu {
  MANYRANKS_HD float operator()(float x) const { return x * gate(x, x * x); }
  MANYRANKS_HD float slope(float x) const {
    const float square = x * x, s = gate(x, square);
    return std::fma(x * s * (1.0F - s), std::fma(6 * root * cube, square, 2 * root), s);
  }

 private:
  static constexpr float root = 0.7978845608F, cube = 0.044715F;  // sqrt(2/pi)
  static constexpr float bits = 1.44269504F;                      // log2(e): e^-2u = 2^(-2u log2(e))

  static MANYRANKS_HD float gate(float x, float square) {
    return 1.0F / one_and_power_of_two(x * std::fma(-2 * root * cube * bits, square, -2 * root * bits));
  }

  // 1 + 2^y = 1 + 2^n 2^f with n whole and |f| <= 1/2, where a polynomial does (Cephes' coefficients). Beyond +-126 float ends; NaN stays NaN.
  static MANYRANKS_HD float one_and_power_of_two(float y) {
    y = y < -126.0F ? -126.0F : y;
    y = y > 126.0F ? 126.0F : y;
    constexpr float shift = 12582912.0F;                 // 1.5 * 2^23: what is added to it is rounded to a whole number, in its last bits
    const float shifted = y + shift, f = y - (shifted - shift);
    float p = 1.535336188e-4F;
    p = std::fma(p, f, 1.339887440e-3F);
    p = std::fma(p, f, 9.618437357e-3F);
    p = std::fma(p, f, 5.550332471e-2F);
    p = std::fma(p, f, 2.402264791e-1F);
    p = std::fma(p, f, 6.931472028e-1F);
    p = std::fma(p, f, 1.0F);
    const float power = std::bit_cast<float>((std::bit_cast<int32_t>(shifted) + (127 - 0x4b400000)) << 23);  // 2^n
    return std::fma(p, power, 1.0F);
  }
};

}  // namespace manyranks::kernels
