// GELU in GPT-2's form, x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), of one element. It is x / (1 + e^-2u): one exponential
// and one division, where the tanh form takes a tanh and cancels where x < 0. Only multiplications, additions and a division, none of them
// contracted: the same bits in a vector body, in its tail and on every CPU, so that a part of a cut layer has the bits of the whole.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/functors.hpp"  // MANYRANKS_HD

namespace manyranks::kernels {

struct Gelu {
  MANYRANKS_HD float operator()(float x) const { return x * gate(x); }
  MANYRANKS_HD float slope(float x) const {
    const float s = gate(x);
    return s + x * s * (1.0F - s) * (2 * root + 6 * root * cube * (x * x));
  }

 private:
  static constexpr float root = 0.7978845608F, cube = 0.044715F;  // sqrt(2/pi)

  static MANYRANKS_HD float gate(float x) { return 1.0F / (1.0F + exponential(x * (-2 * root - 2 * root * cube * (x * x)))); }

  // e^y = 2^n e^r with n whole and |r| <= ln(2)/2, where a polynomial does (Cephes' coefficients). Beyond +-87 float ends; NaN stays NaN.
  static MANYRANKS_HD float exponential(float y) {
    y = y < -87.0F ? -87.0F : y;
    y = y > 87.0F ? 87.0F : y;
    constexpr float shift = 12582912.0F;                 // 1.5 * 2^23: what is added to it is rounded to a whole number, in its last bits
    const float shifted = y * 1.44269504F + shift, n = shifted - shift;
    const float r = (y - n * 0.693359375F) + n * 2.12194440e-4F;  // ln 2 in two parts, the first exact
    float p = 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    const float power = std::bit_cast<float>((std::bit_cast<int32_t>(shifted) + (127 - 0x4b400000)) << 23);  // 2^n
    return (p * (r * r) + r + 1.0F) * power;
  }
};

}  // namespace manyranks::kernels
