#include "comm/reduce.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

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
  result = magnitude > 0x7f800000 ? 0x7e00 : result;      // NaN
  return Half{static_cast<uint16_t>(result | ((bits >> 16) & 0x8000))};
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

template <ReduceOp op>
inline float apply(float a, float b) { return apply_plain<op>(a, b); }
template <ReduceOp op>
inline double apply(double a, double b) { return apply_plain<op>(a, b); }
// Unsigned inside: signed overflow is undefined, wrapping is what every backend does.
template <ReduceOp op>
inline int32_t apply(int32_t a, int32_t b) {
  if constexpr (op == ReduceOp::sum || op == ReduceOp::product)
    return static_cast<int32_t>(apply_plain<op>(static_cast<uint32_t>(a), static_cast<uint32_t>(b)));
  return apply_plain<op>(a, b);
}
template <ReduceOp op>
inline int64_t apply(int64_t a, int64_t b) {
  if constexpr (op == ReduceOp::sum || op == ReduceOp::product)
    return static_cast<int64_t>(apply_plain<op>(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  return apply_plain<op>(a, b);
}
template <ReduceOp op>
inline uint8_t apply(uint8_t a, uint8_t b) { return static_cast<uint8_t>(apply_plain<op, unsigned>(a, b)); }
template <ReduceOp op>
inline Half apply(Half a, Half b) { return to_half(apply_plain<op>(to_float(a), to_float(b))); }
template <ReduceOp op>
inline BFloat16 apply(BFloat16 a, BFloat16 b) { return to_bfloat16(apply_plain<op>(to_float(a), to_float(b))); }
template <ReduceOp op>
inline Bool apply(Bool a, Bool b) {
  const bool x = a.value != 0, y = b.value != 0;
  return Bool{static_cast<uint8_t>(op == ReduceOp::sum || op == ReduceOp::max ? x | y : x & y)};
}

// Pointers may be equal (in place): elementwise reading before writing makes that right, which `ivdep` tells the compiler.
template <class T, ReduceOp op>
inline void loop2(T* out, const T* a, const T* b, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = apply<op>(a[i], b[i]);
}
template <class T, ReduceOp op>
inline void loop3(T* out, const T* a, const T* b, const T* c, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = apply<op>(apply<op>(a[i], b[i]), c[i]);
}
template <class T, ReduceOp op>
inline void loop4(T* out, const T* a, const T* b, const T* c, const T* d, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = apply<op>(apply<op>(apply<op>(a[i], b[i]), c[i]), d[i]);
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
