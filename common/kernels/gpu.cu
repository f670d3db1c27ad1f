// The same functors on a GPU. Grid-stride loops: neighbouring threads touch neighbouring elements (coalesced), and a grid
// that fills the device covers a buffer of any size.
#include <cuda_runtime.h>

#include <algorithm>
#include <cub/block/block_reduce.cuh>
#include <string>

#include "kernels/kernels.hpp"
#include "launch/errors.hpp"

namespace manyranks::kernels::gpu {
namespace {

constexpr int threads = 256;
// Fixed, not the device's number of processors: it decides the order of additions in sum_of_squares.
constexpr int64_t max_blocks = sum_of_squares_workspace;

int blocks_for(int64_t count) { return static_cast<int>(std::clamp<int64_t>((count + threads - 1) / threads, 1, max_blocks)); }

// Errors inside a kernel show up at the next synchronisation; this catches launches that never began.
void check_launch(const char* kernel) {
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return;
  const std::string cause = cudaGetErrorString(code);
  if (code == cudaErrorNoKernelImageForDevice) {
    throw unavailable_error(kernel, cause, "configure with -DCMAKE_CUDA_ARCHITECTURES=<this GPU's, or native>");
  }
  throw unavailable_error(kernel, cause);
}

__device__ int64_t first() { return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; }
__device__ int64_t stride() { return gridDim.x * static_cast<int64_t>(blockDim.x); }

__global__ void sgd_kernel(Sgd step, float* __restrict__ parameter, const float* __restrict__ gradient,
                           float* __restrict__ velocity, int64_t count) {
  for (int64_t i = first(); i < count; i += stride()) step(parameter[i], gradient[i], velocity[i]);
}

__global__ void adam_kernel(Adam step, float* __restrict__ parameter, const float* __restrict__ gradient,
                            float* __restrict__ mean, float* __restrict__ square, int64_t count) {
  for (int64_t i = first(); i < count; i += stride()) step(parameter[i], gradient[i], mean[i], square[i]);
}

__global__ void scale_kernel(Scale scale, float* __restrict__ values, int64_t count, float* not_finite) {
  bool bad = false;
  for (int64_t i = first(); i < count; i += stride()) bad |= scale(values[i]);
  // Every writer writes the same 1, and a block asks first whether it has anything to say.
  if (__syncthreads_or(bad) && threadIdx.x == 0) *not_finite = 1.0F;
}

using BlockSum = cub::BlockReduce<double, threads>;

// Each block leaves one partial sum; one block then adds those. Two launches instead of an atomicAdd, whose order, and so
// whose bits, would change from call to call.
__global__ void partial_sums_kernel(const float* __restrict__ values, int64_t count, double* __restrict__ partial) {
  __shared__ typename BlockSum::TempStorage scratch;
  const Square square;
  double mine = 0;
  for (int64_t i = first(); i < count; i += stride()) mine += square(values[i]);
  const double sum = BlockSum(scratch).Sum(mine);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void final_sum_kernel(const double* __restrict__ partial, int blocks, double* __restrict__ result) {
  __shared__ typename BlockSum::TempStorage scratch;
  double mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += threads) mine += partial[i];
  const double sum = BlockSum(scratch).Sum(mine);
  if (threadIdx.x == 0) *result = sum;
}

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

void sgd(const Sgd& step, float* parameter, const float* gradient, float* velocity, int64_t count, void* stream) {
  if (count == 0) return;
  sgd_kernel<<<blocks_for(count), threads, 0, as_stream(stream)>>>(step, parameter, gradient, velocity, count);
  check_launch("sgd kernel");
}

void adam(const Adam& step, float* parameter, const float* gradient, float* mean, float* square, int64_t count, void* stream) {
  if (count == 0) return;
  adam_kernel<<<blocks_for(count), threads, 0, as_stream(stream)>>>(step, parameter, gradient, mean, square, count);
  check_launch("adam kernel");
}

void scale(const Scale& scale, float* values, int64_t count, float* not_finite, void* stream) {
  if (count == 0) return;
  scale_kernel<<<blocks_for(count), threads, 0, as_stream(stream)>>>(scale, values, count, not_finite);
  check_launch("scale kernel");
}

void sum_of_squares(const float* values, int64_t count, double* result, double* workspace, void* stream) {
  const int blocks = blocks_for(count);
  partial_sums_kernel<<<blocks, threads, 0, as_stream(stream)>>>(values, count, workspace);
  check_launch("sum of squares kernel");
  final_sum_kernel<<<1, threads, 0, as_stream(stream)>>>(workspace, blocks, result);
  check_launch("sum of squares kernel");
}

}  // namespace manyranks::kernels::gpu
