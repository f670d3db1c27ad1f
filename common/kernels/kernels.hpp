// The fused kernels on flat buffers, CPU and GPU, on raw pointers: no LibTorch. train/fused.hpp picks by a tensor's device.
//
// The elementwise ones give each element the same bits however a buffer is cut: a shard, a bucket and the whole agree.
// sum_of_squares adds in double in an order fixed by `count` alone: the same bits on every call and for every number of
// threads or blocks.
#pragma once

#include <cstdint>

#include "kernels/functors.hpp"  // Sgd, Adam, Scale

namespace manyranks::kernels {

namespace cpu {

void sgd(const Sgd& step, float* parameter, const float* gradient, float* velocity, int64_t count);
void adam(const Adam& step, float* parameter, const float* gradient, float* mean, float* square, int64_t count);
// values *= factor; true if all results are finite.
bool scale(const Scale& scale, float* values, int64_t count);
double sum_of_squares(const float* values, int64_t count);
void gelu(float* out, const float* x, int64_t count);
void gelu_backward(float* out, const float* x, const float* gradient, int64_t count);

}  // namespace cpu

#if defined(MANYRANKS_HAVE_CUDA)
// Device pointers; `stream` is a cudaStream_t. They enqueue and return: results that the host wants are left in device memory.
namespace gpu {

void sgd(const Sgd& step, float* parameter, const float* gradient, float* velocity, int64_t count, void* stream);
void adam(const Adam& step, float* parameter, const float* gradient, float* mean, float* square, int64_t count, void* stream);
// *not_finite becomes 1 if a result is not finite, and is left alone otherwise: one flag can serve many buffers.
void scale(const Scale& scale, float* values, int64_t count, float* not_finite, void* stream);

constexpr int64_t sum_of_squares_workspace = 1024;  // doubles
void sum_of_squares(const float* values, int64_t count, double* result, double* workspace, void* stream);

}  // namespace gpu
#endif

}  // namespace manyranks::kernels
