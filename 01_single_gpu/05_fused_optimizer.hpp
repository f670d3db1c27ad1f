// The lesson's own GPU kernels, written out by hand; 05_fused_optimizer.cu has them. common/kernels/gpu.cu is what training uses.
#pragma once

#include <cstdint>

#include "kernels/functors.hpp"  // kernels::Adam

namespace manyranks::lesson {

// Device pointers; `stream` is a cudaStream_t. They enqueue and return.
void adam_on_gpu(const kernels::Adam& step, float* parameter, const float* gradient, float* mean, float* square, int64_t count, void* stream);

// Sum of squares into *result (double, on the device): by hand, and with CCCL's.
void sum_of_squares_by_hand(const float* values, int64_t count, double* result, void* stream);
void sum_of_squares_by_cub(const float* values, int64_t count, double* result, void* stream);

}  // namespace manyranks::lesson
