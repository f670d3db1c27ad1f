// Your first CUDA kernels: one thread per element, and a reduction over all of them.
//
// A kernel is a function that thousands of threads run at once; each finds out who it is and takes its elements. The
// arithmetic of one element is kernels::Adam, the same functor that 05_fused_optimizer.cpp calls in a plain C++ loop.
#include "05_fused_optimizer.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cub/device/device_reduce.cuh>
#include <cuda/std/functional>
#include <string>

#include "launch/errors.hpp"

namespace manyranks::lesson {
namespace {

constexpr int threads = 256;  // of a block: a multiple of the 32 of a warp

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw unavailable_error(what, cudaGetErrorString(code));
}

int blocks_for(int64_t count) { return static_cast<int>(std::clamp<int64_t>((count + threads - 1) / threads, 1, 1024)); }

// Thread i takes elements i, i + n, i + 2n ...: in every round, neighbouring threads read neighbouring addresses, which the
// hardware joins into few wide transactions. 28 bytes moved per element for a dozen flops: memory is the limit.
__global__ void adam_kernel(kernels::Adam step, float* __restrict__ parameter, const float* __restrict__ gradient, float* __restrict__ mean,
                            float* __restrict__ square, int64_t count) {
  const int64_t all = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += all) step(parameter[i], gradient[i], mean[i], square[i]);
}

// A reduction inside a block, in two steps. Within a warp, lanes read each other's registers: 32 -> 16 -> ... -> 1 in five
// shuffles, no memory. Across warps, one number each goes through shared memory, and the first warp adds those.
__device__ double block_sum(double mine) {
  __shared__ double of_warp[threads / 32];
  for (int distance = 16; distance > 0; distance /= 2) mine += __shfl_down_sync(0xffffffffU, mine, distance);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) of_warp[warp] = mine;
  __syncthreads();  // all warps have written before the first one reads
  mine = threadIdx.x < threads / 32 ? of_warp[lane] : 0.0;
  if (warp == 0)
    for (int distance = 16; distance > 0; distance /= 2) mine += __shfl_down_sync(0xffffffffU, mine, distance);
  return mine;  // whole only in thread 0
}

// One atomicAdd per block, not per thread. Blocks finish in any order, so the last bits may differ from run to run:
// common/kernels/gpu.cu spends a second launch to avoid that.
__global__ void sum_of_squares_kernel(const float* __restrict__ values, int64_t count, double* result) {
  const int64_t all = static_cast<int64_t>(gridDim.x) * blockDim.x;
  double mine = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += all) mine += kernels::Square()(values[i]);
  const double sum = block_sum(mine);
  if (threadIdx.x == 0) atomicAdd(result, sum);
}

}  // namespace

void adam_on_gpu(const kernels::Adam& step, float* parameter, const float* gradient, float* mean, float* square, int64_t count, void* stream) {
  adam_kernel<<<blocks_for(count), threads, 0, static_cast<cudaStream_t>(stream)>>>(step, parameter, gradient, mean, square, count);
  check(cudaGetLastError(), "adam kernel");
}

void sum_of_squares_by_hand(const float* values, int64_t count, double* result, void* stream) {
  check(cudaMemsetAsync(result, 0, sizeof(double), static_cast<cudaStream_t>(stream)), "clear the sum");
  sum_of_squares_kernel<<<blocks_for(count), threads, 0, static_cast<cudaStream_t>(stream)>>>(values, count, result);
  check(cudaGetLastError(), "sum of squares kernel");
}

// CCCL: the functor squares what is read, and a reduction tuned for every architecture takes the place of all of the above.
// Its first call only asks how much scratch memory it needs.
void sum_of_squares_by_cub(const float* values, int64_t count, double* result, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  void* scratch = nullptr;
  size_t bytes = 0;
  const auto sum = [&] { return cub::DeviceReduce::TransformReduce(scratch, bytes, values, result, count, cuda::std::plus<double>(), kernels::Square(), 0.0, on); };
  check(sum(), "size of CUB's scratch");
  check(cudaMallocAsync(&scratch, bytes, on), "CUB's scratch");
  const cudaError_t code = sum();
  check(cudaFreeAsync(scratch, on), "free CUB's scratch");
  check(code, "CUB's sum");
}

}  // namespace manyranks::lesson
