#include "comm/reduce.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

// One binary for every node: the loops are compiled for several instruction sets and picked when the program loads.
// Sanitizers and the resolvers of such functions do not mix.
#if defined(__x86_64__) && !defined(MANYRANKS_SANITIZE) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

namespace manyranks {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct Bool {
  uint8_t value;
};

// Without branches, so that the loops around them become vector code.
inline float to_float(Half h) {
  const uint32_t magnitude = static_cast<uint32_t>(h.bits & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000) << 16;
  // Exponent bias 15 -> 127 by a multiplication, which also makes subnormal halves normal floats.
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude + ((255u - 31u) << 23);
  return std::bit_cast<float>(sign | (magnitude >= (31u << 23) ? special : finite));
}

inline Half to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  // Normal: round to nearest even at bit 13. Subnormal: adding 0.5 lets the FPU do the rounding.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
  result = magnitude >= (143u << 23) ? 0x7c00 : result;   // 65536 and more: infinity
  result |= (bits >> 16) & 0x8000;
  return Half{static_cast<uint16_t>(magnitude > 0x7f800000 ? 0x7e00 : result)};  // one NaN, without a sign
}

inline float to_float(BFloat16 b) { return std::bit_cast<float>(static_cast<uint32_t>(b.bits) << 16); }
inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return BFloat16{static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
}

template <ReduceOp op, class T>
inline T apply_plain(T a, T b) {
  if constexpr (op == ReduceOp::sum) return a + b;
  if constexpr (op == ReduceOp::product) return a * b;
  if constexpr (op == ReduceOp::min) return b < a ? b : a;
  return a < b ? b : a;
}

// A chain of operations is lift, combine, combine, ..., lower: what combine() works on may differ from what memory holds. Neither the
// order of two operands nor a CPU's choice of NaN may show in the bits: the sum of two NaNs would be the first of them, and which is
// first the compiler decides; `b < a ? b : a` would be a if both are zeros, or if one is NaN.
template <class T, ReduceOp op>
struct Steps {  // integers; unsigned inside: signed overflow is undefined, wrapping is what every backend does
  static T lift(T a) { return a; }
  static T combine(T a, T b) {
    using Unsigned = std::make_unsigned_t<T>;
    if constexpr (op == ReduceOp::sum || op == ReduceOp::product)
      return static_cast<T>(static_cast<Unsigned>(apply_plain<op, std::common_type_t<Unsigned, unsigned>>(static_cast<Unsigned>(a), static_cast<Unsigned>(b))));
    return apply_plain<op>(a, b);
  }
  static T lower(T a) { return a; }
};

// A maximum is the minimum of the negated. Of two zeros, and of a NaN and anything, the two ways to write a minimum give one each; the
// bits of both together are -0 if one of the zeros was, and some NaN.
template <class Float, ReduceOp op>
struct FloatSteps {
  using Bits = std::conditional_t<sizeof(Float) == 4, uint32_t, uint64_t>;
  static Float lift(Float a) { return op == ReduceOp::max ? -a : a; }
  static Float combine(Float a, Float b) {
    if constexpr (op == ReduceOp::sum || op == ReduceOp::product) return apply_plain<op>(a, b);
    return std::bit_cast<Float>(std::bit_cast<Bits>(b < a ? b : a) | std::bit_cast<Bits>(a < b ? a : b));
  }
  static Float lower(Float a) {
    const Float result = lift(a);
    return result == result ? result : std::numeric_limits<Float>::quiet_NaN();
  }
};
template <ReduceOp op>
struct Steps<float, op> : FloatSteps<float, op> {};
template <ReduceOp op>
struct Steps<double, op> : FloatSteps<double, op> {};

inline Half round_to(float value, Half) { return to_half(value); }
inline BFloat16 round_to(float value, BFloat16) { return to_bfloat16(value); }

// Rounded after each step; the rounding knows only one NaN.
template <class T, ReduceOp op>
struct SixteenBitSteps {
  static T lift(T a) { return a; }
  static T combine(T a, T b) { return round_to(apply_plain<op>(to_float(a), to_float(b)), T{}); }
  static T lower(T a) { return a; }
};
// Compared as integers in the order of the numbers, -0 just below +0, NaN beyond all of them.
template <class T, ReduceOp op, int16_t infinity, int16_t nan>
struct SixteenBitOrder {
  static constexpr int16_t beyond = op == ReduceOp::min ? INT16_MIN : INT16_MAX;
  static int16_t mirror(int16_t a) { return static_cast<int16_t>(a ^ ((a >> 15) & 0x7fff)); }
  static int16_t lift(T a) { return (a.bits & 0x7fff) > infinity ? beyond : mirror(static_cast<int16_t>(a.bits)); }
  static int16_t combine(int16_t a, int16_t b) { return apply_plain<op>(a, b); }
  static T lower(int16_t a) { return T{static_cast<uint16_t>(a == beyond ? nan : mirror(a))}; }
};
constexpr bool picks(ReduceOp op) { return op == ReduceOp::min || op == ReduceOp::max; }
template <ReduceOp op>
struct Steps<Half, op> : std::conditional_t<picks(op), SixteenBitOrder<Half, op, 0x7c00, 0x7e00>, SixteenBitSteps<Half, op>> {};
template <ReduceOp op>
struct Steps<BFloat16, op> : std::conditional_t<picks(op), SixteenBitOrder<BFloat16, op, 0x7f80, 0x7fc0>, SixteenBitSteps<BFloat16, op>> {};

template <ReduceOp op>
struct Steps<Bool, op> {
  static Bool lift(Bool a) { return a; }
  static Bool combine(Bool a, Bool b) {
    const bool x = a.value != 0, y = b.value != 0;
    return Bool{static_cast<uint8_t>(op == ReduceOp::sum || op == ReduceOp::max ? x | y : x & y)};
  }
  static Bool lower(Bool a) { return a; }
};

// Pointers may be equal (in place): elementwise reading before writing makes that right, which `ivdep` tells the compiler.
template <class T, ReduceOp op>
inline void loop2(T* out, const T* a, const T* b, size_t n) {
  using S = Steps<T, op>;
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = S::lower(S::combine(S::lift(a[i]), S::lift(b[i])));
}
template <class T, ReduceOp op>
inline void loop3(T* out, const T* a, const T* b, const T* c, size_t n) {
  using S = Steps<T, op>;
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = S::lower(S::combine(S::combine(S::lift(a[i]), S::lift(b[i])), S::lift(c[i])));
}
template <class T, ReduceOp op>
inline void loop4(T* out, const T* a, const T* b, const T* c, const T* d, size_t n) {
  using S = Steps<T, op>;
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i)
    out[i] = S::lower(S::combine(S::combine(S::combine(S::lift(a[i]), S::lift(b[i])), S::lift(c[i])), S::lift(d[i])));
}

constexpr size_t block = 2048;  // elements: the accumulator of a long chain stays in the first-level cache

template <class T, ReduceOp op>
inline void chain(T* out, const T* const* in, int inputs, size_t count) {
  if (inputs == 1) {
    if (count && out != in[0]) std::memcpy(out, in[0], count * sizeof(T));  // an empty tensor has no address
    return;
  }
  if (inputs == 2) return loop2<T, op>(out, in[0], in[1], count);
  if (inputs == 3) return loop3<T, op>(out, in[0], in[1], in[2], count);
  if (inputs == 4) return loop4<T, op>(out, in[0], in[1], in[2], in[3], count);
  T sum[block];  // not in `out`: it may be an input that is still to be read
  for (size_t at = 0; at < count; at += block) {
    const size_t n = std::min(block, count - at);
    loop4<T, op>(sum, in[0] + at, in[1] + at, in[2] + at, in[3] + at, n);
    for (int k = 4; k < inputs; ++k) loop2<T, op>(sum, sum, in[k] + at, n);
    std::memcpy(out + at, sum, n * sizeof(T));
  }
}

template <class T>
inline void chain_op(T* out, const T* const* in, int inputs, size_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return chain<T, ReduceOp::sum>(out, in, inputs, count);
    case ReduceOp::product: return chain<T, ReduceOp::product>(out, in, inputs, count);
    case ReduceOp::min: return chain<T, ReduceOp::min>(out, in, inputs, count);
    case ReduceOp::max: return chain<T, ReduceOp::max>(out, in, inputs, count);
  }
}

// target_clones copies one function: everything below must be inlined into it to be compiled for each CPU.
template <class T>
__attribute__((always_inline)) inline void cast_and_chain(void* out, const void* const* in, int inputs, size_t count, ReduceOp op) {
  chain_op(static_cast<T*>(out), reinterpret_cast<const T* const*>(in), inputs, count, op);
}

}  // namespace

FOR_EACH_CPU __attribute__((flatten)) void reduce(void* out, const void* const* in, int inputs, size_t count, Dtype dtype, ReduceOp op) {
  switch (dtype) {
    case Dtype::float32: return cast_and_chain<float>(out, in, inputs, count, op);
    case Dtype::float64: return cast_and_chain<double>(out, in, inputs, count, op);
    case Dtype::float16: return cast_and_chain<Half>(out, in, inputs, count, op);
    case Dtype::bfloat16: return cast_and_chain<BFloat16>(out, in, inputs, count, op);
    case Dtype::int32: return cast_and_chain<int32_t>(out, in, inputs, count, op);
    case Dtype::int64: return cast_and_chain<int64_t>(out, in, inputs, count, op);
    case Dtype::uint8: return cast_and_chain<uint8_t>(out, in, inputs, count, op);
    case Dtype::boolean: return cast_and_chain<Bool>(out, in, inputs, count, op);
  }
}

void reduce_into(void* inout, const void* in, size_t count, Dtype dtype, ReduceOp op) {
  const void* inputs[] = {inout, in};
  reduce(inout, inputs, 2, count, dtype, op);
}

float float_from_half(uint16_t bits) { return to_float(Half{bits}); }
uint16_t half_from_float(float value) { return to_half(value).bits; }

}  // namespace manyranks
