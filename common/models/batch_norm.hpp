// torch::nn::BatchNorm2d, which can be told to take its statistics from more samples than it sees: those of all ranks.
#pragma once

#include <torch/nn/modules/batchnorm.h>

#include <functional>

namespace manyranks {

class BatchNormImpl : public torch::nn::BatchNorm2dImpl {
 public:
  using torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;

  // Sums a row over all who normalise together; autograd must be able to go back through it. Empty: this process's samples.
  std::function<torch::Tensor(const torch::Tensor&)> sum_over_ranks;

  torch::Tensor forward(const torch::Tensor& x);  // (N, C, H, W); N may be 0 if others have samples
};
TORCH_MODULE(BatchNorm);

}  // namespace manyranks
