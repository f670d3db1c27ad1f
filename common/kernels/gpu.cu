// The same functors on a GPU. Grid-stride loops: neighbouring threads touch neighbouring elements (coalesced), and a grid
// that fills the device covers a buffer of any size.
#include <cuda_runtime.h>

#include <algorithm>
#include <cub/block/block_reduce.cuh>
#include <string>

#include "kernels/guarded.hpp"
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

// A step's functor over its buffers: parameter, gradient, and as many rows of state as it has.
template <class Step, class... State>
__device__ void step_all(const Step& step, int64_t count, float* __restrict__ parameter, const float* __restrict__ gradient, State* __restrict__... state) {
  for (int64_t i = first(); i < count; i += stride()) step(parameter[i], gradient[i], state[i]...);
}

template <class Step, class... State>
__global__ void step_kernel(Step step, int64_t count, float* __restrict__ parameter, const float* __restrict__ gradient, State* __restrict__... state) {
  step_all(step, count, parameter, gradient, state...);
}

// Every thread reads the one number and decides as all others do: no thread waits for another, and the host for none.
template <class Step, class... State>
__global__ void guarded_kernel(Guarded<Step> guarded, const double* __restrict__ squared_norm, int64_t count, float* __restrict__ parameter,
                               const float* __restrict__ gradient, State* __restrict__... state) {
  if (Guard::accepts(*squared_norm)) step_all(guarded.resolved(*squared_norm), count, parameter, gradient, state...);
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
  step_kernel<<<blocks_for(count), threads, 0, as_stream(stream)>>>(step, count, parameter, gradient, velocity);
  check_launch("sgd kernel");
}

void adam(const Adam& step, float* parameter, const float* gradient, float* mean, float* square, int64_t count, void* stream) {
  if (count == 0) return;
  step_kernel<<<blocks_for(count), threads, 0, as_stream(stream)>>>(step, count, parameter, gradient, mean, square);
  check_launch("adam kernel");
}

void guarded_sgd(const Guarded<Sgd>& guarded, const double* squared_norm, float* parameter, const float* gradient, float* velocity, int64_t count,
                 void* stream) {
  if (count == 0) return;
  guarded_kernel<<<blocks_for(count), threads, 0, as_stream(stream)>>>(guarded, squared_norm, count, parameter, gradient, velocity);
  check_launch("guarded sgd kernel");
}

void guarded_adam(const Guarded<Adam>& guarded, const double* squared_norm, float* parameter, const float* gradient, float* mean, float* square,
                  int64_t count, void* stream) {
  if (count == 0) return;
  guarded_kernel<<<blocks_for(count), threads, 0, as_stream(stream)>>>(guarded, squared_norm, count, parameter, gradient, mean, square);
  check_launch("guarded adam kernel");
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
