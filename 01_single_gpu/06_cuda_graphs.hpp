// Forward and backward of one batch as a CUDA graph: recorded once, then replayed with one launch. Needs CUDA.
#pragma once

#include "launch/torch.hpp"

#include "models/model.hpp"  // Model, cross_entropy

#if defined(MANYRANKS_HAVE_CUDA)
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace manyranks {

// What is recorded is addresses: input, labels, loss, weights and gradients must stay where they are. So new batches are copied
// into the recorded input, and gradients must live in buffers that are cleared, not dropped: FlatParameters.
class GraphedStep {
 public:
  // `forward_backward` computes the loss from (x, y), calls backward, and returns the loss; it must not wait for the GPU, nor
  // read from it. A few plain steps first: libraries choose kernels and allocate in their first calls, which no capture may see.
  // They leave their traces in the gradients, which the caller clears, and in running statistics of batch norm.
  template <class Body>
  GraphedStep(const torch::Tensor& x, const torch::Tensor& y, Body forward_backward) : x_(x.clone()), y_(y.clone()) {
    const auto stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, x.device().index());  // the default stream cannot be captured
    torch::cuda::synchronize();
    {
      const c10::cuda::CUDAStreamGuard guard(stream);
      for (int i = 0; i < 3; ++i) forward_backward(x_, y_);
      stream.synchronize();
      graph_.capture_begin();
      loss_ = forward_backward(x_, y_).detach();
      graph_.capture_end();
    }
    torch::cuda::synchronize();
  }

  // Overwritten by the next replay.
  const torch::Tensor& replay(const torch::Tensor& x, const torch::Tensor& y) {
    x_.copy_(x, /*non_blocking=*/true), y_.copy_(y, /*non_blocking=*/true);
    graph_.replay();
    return loss_;
  }

 private:
  at::cuda::CUDAGraph graph_;
  torch::Tensor x_, y_, loss_;
};

}  // namespace manyranks
#endif
