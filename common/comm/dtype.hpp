// Element types and reductions, without LibTorch: what the algorithms and the shared-memory layer speak in.
#pragma once

#include <cstddef>
#include <cstdint>

namespace manyranks {

enum class Dtype : uint8_t { float32, float64, float16, bfloat16, int32, int64, uint8, boolean };
constexpr Dtype all_dtypes[] = {Dtype::float32, Dtype::float64, Dtype::float16, Dtype::bfloat16,
                                Dtype::int32,   Dtype::int64,   Dtype::uint8,   Dtype::boolean};

// For bool, sum and max are "or", product and min are "and". Integers wrap around.
enum class ReduceOp : uint8_t { sum, product, min, max };

constexpr size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
    case Dtype::int64: return 8;
    case Dtype::float32:
    case Dtype::int32: return 4;
    case Dtype::float16:
    case Dtype::bfloat16: return 2;
    case Dtype::uint8:
    case Dtype::boolean: return 1;
  }
  return 1;
}

constexpr const char* name_of(Dtype dtype) {
  constexpr const char* names[] = {"float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"};
  return names[static_cast<int>(dtype)];
}

constexpr const char* name_of(ReduceOp op) {
  constexpr const char* names[] = {"sum", "product", "min", "max"};
  return names[static_cast<int>(op)];
}

}  // namespace manyranks
