// What NCCL needs before its first collective: a GPU per rank, a unique id that everybody shares, a communicator, a stream.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "raw_mpi.hpp"  // RawMpi

#if MANYRANKS_HAVE_CUDA
#include <cuda_runtime.h>
#include <nccl.h>
#endif

namespace manyranks {

class NcclSide {
 public:
  // Collective. Without GPUs it stays empty and why_not() says what is missing.
  NcclSide(const Process& process, const RawMpi& mpi, size_t floats);
  ~NcclSide();
  NcclSide(const NcclSide&) = delete;
  NcclSide& operator=(const NcclSide&) = delete;

  bool ready() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }

  // Copies `in` and `out` to the GPU, enqueues the collective, and returns what is then in the GPU's `out`.
  std::vector<float> run(const std::vector<float>& in, const std::vector<float>& out, const std::function<void()>& collective);

#if MANYRANKS_HAVE_CUDA
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float *in = nullptr, *out = nullptr;  // on the GPU
#endif

 private:
  std::string why_not_;
};

}  // namespace manyranks

#if MANYRANKS_HAVE_CUDA
#define CHECK_CUDA(call)                                                                                                          \
  if (const cudaError_t code = (call); code != cudaSuccess) throw ::manyranks::unavailable_error(#call, cudaGetErrorString(code))
// ncclGetLastError says which rank and which system call; the code alone says "unhandled system error".
#define CHECK_NCCL(call)                                                                                                          \
  if (const ncclResult_t code = (call); code != ncclSuccess)                                                                      \
  throw ::manyranks::lost_peer_error(#call, std::string(ncclGetErrorString(code)) + ": " + ncclGetLastError(nullptr), "NCCL_DEBUG=INFO")
#endif
