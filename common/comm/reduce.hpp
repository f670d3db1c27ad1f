// Elementwise reduction of several buffers in a fixed order: out[i] = ((in[0][i] + in[1][i]) + in[2][i]) + ...
// The bits of out[i] depend on nothing but the bits of in[.][i]: not on the chunking, the alignment or the CPU. a (+) b has the bits of
// b (+) a for every a and b, so that two ranks that swap their numbers get the same: a result that is not a number is always the same
// NaN (positive, quiet, no payload), min and max are NaN if one operand is, and -0 is less than +0. Therefore min and max do not depend
// on the order of a chain at all; sums and products of floating-point numbers do.
#pragma once

#include <cstddef>

#include "comm/dtype.hpp"

namespace manyranks {

// `out` may be one of the inputs, or disjoint from all of them. half and bfloat16 are added in float and rounded to
// nearest-even after each step, as a chain of two-operand sums would.
void reduce(void* out, const void* const* in, int inputs, size_t count, Dtype dtype, ReduceOp op);

// Two operands, the common case of the algorithms between hosts: inout = inout (+) in.
void reduce_into(void* inout, const void* in, size_t count, Dtype dtype, ReduceOp op);

float float_from_half(uint16_t bits);
uint16_t half_from_float(float value);

}  // namespace manyranks
