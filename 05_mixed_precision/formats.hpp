// Floating-point formats by hand: one encoder and one decoder for all of them. No LibTorch.
//
//   sign | exponent, E bits | mantissa, M bits        value = (-1)^sign * 2^(exponent - bias) * (1 + mantissa / 2^M)
//
// exponent 0: subnormal, 2^(1 - bias) * (mantissa / 2^M), evenly spaced down to zero. All ones: infinity (mantissa 0) or NaN; but e4m3
// gave that row up for numbers: it has no infinity, one NaN (mantissa all ones), and 448 in place of 240 as its largest.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace manyranks {

struct Format {
  const char* name;
  int exponent_bits, mantissa_bits;
  bool has_infinity = true;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int bits() const { return 1 + exponent_bits + mantissa_bits; }
  constexpr uint32_t sign_bit() const { return 1U << (exponent_bits + mantissa_bits); }
  constexpr uint32_t infinity() const { return ((1U << exponent_bits) - 1) << mantissa_bits; }  // where there is one
  constexpr uint32_t largest() const { return has_infinity ? infinity() - 1 : sign_bit() - 2; }
};

inline constexpr Format fp32{"fp32", 8, 23}, tf32{"TF32", 8, 10}, fp16{"fp16", 5, 10}, bf16{"bf16", 8, 7}, fp8_e4m3{"fp8 e4m3", 4, 3, false}, fp8_e5m2{"fp8 e5m2", 5, 2};

// The bits of NaN: there are many, and every library picks one. These are c10's.
constexpr uint32_t nan_bits(const Format& format) {
  if (format.bits() == 8) return format.sign_bit() - 1;                      // all ones
  return format.infinity() | (1U << (format.mantissa_bits - 1));             // quiet
}

// The significand of a float, cut to the format's spacing at that size: `kept` steps, and `rest` of `step` parts of the next one.
struct Cut {
  int exponent;
  uint32_t kept, rest;
  int shift;  // a step is 2^shift float units
};
inline Cut cut(float value, const Format& format) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffU;
  const bool normal = magnitude >= 0x00800000U;
  const int exponent = normal ? static_cast<int>(magnitude >> 23) - 127 : -126;
  const uint32_t significand = (magnitude & 0x007fffffU) | (normal ? 0x00800000U : 0U);  // 24 bits
  const int smallest = 1 - format.bias();
  int shift = 23 - format.mantissa_bits;
  if (exponent < smallest) shift += smallest - exponent;  // subnormal there: spacing no longer shrinks
  if (shift > 26) return {exponent, 0, shift < 50 ? significand >> (shift - 26) : 0, 26};  // far less than half of the smallest number
  return {exponent, significand >> shift, significand & ((1U << shift) - 1), shift};
}

// Puts sign, exponent and rounded steps together. A carry out of the mantissa runs into the exponent, which is just what it should do.
inline uint32_t assemble(float value, const Format& format, const Cut& parts, uint32_t steps) {
  const uint32_t sign = std::signbit(value) ? format.sign_bit() : 0;
  const int smallest = 1 - format.bias();
  const uint32_t code = parts.exponent < smallest ? steps : (static_cast<uint32_t>(parts.exponent + format.bias() - 1) << format.mantissa_bits) + steps;
  if (code <= format.largest()) return sign | code;
  return sign | (format.has_infinity ? format.infinity() : format.largest());  // e4m3 saturates, as c10 does
}

inline uint32_t special(float value, const Format& format) {
  const uint32_t sign = std::signbit(value) ? format.sign_bit() : 0;
  if (std::isnan(value)) return format.exponent_bits == 8 ? nan_bits(format) : sign | nan_bits(format);  // c10's bfloat16 drops the sign
  return sign | (format.has_infinity ? format.infinity() : format.largest());
}

// Round to nearest; ties to the even neighbour, so that errors do not add up in one direction.
inline uint32_t encode(float value, const Format& format) {
  if (!std::isfinite(value)) return special(value, format);
  const Cut parts = cut(value, format);
  uint32_t steps = parts.kept;
  if (parts.shift > 0) {
    const uint32_t half = 1U << (parts.shift - 1);
    if (parts.rest > half || (parts.rest == half && (steps & 1U))) ++steps;
  }
  return assemble(value, format, parts, steps);
}

// Up with the probability of what is cut off: right on average, which nearest is not. `random`: 32 uniform bits.
inline uint32_t encode_stochastic(float value, const Format& format, uint32_t random) {
  if (!std::isfinite(value)) return special(value, format);
  const Cut parts = cut(value, format);
  const uint32_t threshold = parts.shift > 0 ? random >> (32 - parts.shift) : 0;  // 0 .. 2^shift - 1
  const uint32_t up = parts.shift > 0 && parts.rest + threshold >= (1U << parts.shift) ? 1 : 0;
  return assemble(value, format, parts, parts.kept + up);
}

// Exact: every number of these formats is a float.
inline float decode(uint32_t code, const Format& format) {
  const uint32_t magnitude = code & (format.sign_bit() - 1);
  const float sign = (code & format.sign_bit()) ? -1.0F : 1.0F;
  if (format.has_infinity && magnitude == format.infinity()) return sign * std::numeric_limits<float>::infinity();
  if (magnitude > format.largest()) {  // NaN keeps its mantissa; all but bfloat16, whose bits are simply a float's upper half, make it quiet
    const uint32_t mantissa = (magnitude & ((1U << format.mantissa_bits) - 1)) << (23 - format.mantissa_bits);
    return std::bit_cast<float>((sign < 0 ? 0x80000000U : 0U) | 0x7f800000U | mantissa | (format.exponent_bits < 8 ? 0x00400000U : 0U));
  }
  const int field = static_cast<int>(magnitude >> format.mantissa_bits);
  const auto mantissa = static_cast<float>((magnitude & ((1U << format.mantissa_bits) - 1)) + (field > 0 ? 1U << format.mantissa_bits : 0U));
  return sign * std::ldexp(mantissa, (field > 0 ? field : 1) - format.bias() - format.mantissa_bits);
}

inline float round_to(float value, const Format& format) { return decode(encode(value, format), format); }

}  // namespace manyranks
