// Unscale, finite check, clip and step on tensors: see kernels/guarded.hpp. float32, contiguous. Nothing here waits for a GPU.
//
//   const torch::Tensor norm = squared_norm(gradients);   // (1), double; shards: all_reduce it
//   guarded_adam({adam_at_step(settings, t), {.inverse_scale = scaler.inverse(), .max_norm = 1.0}}, norm, parameters, gradients, mean, square);
//   const bool stepped = std::isfinite(norm.item<double>());
#pragma once

#include "launch/torch.hpp"

#include "kernels/guarded.hpp"  // kernels::Guarded, kernels::Guard

namespace manyranks {

torch::Tensor squared_norm(const torch::Tensor& gradients);

void guarded_sgd(const kernels::Guarded<kernels::Sgd>& step, const torch::Tensor& norm, torch::Tensor parameter, const torch::Tensor& gradient, torch::Tensor velocity);
void guarded_adam(const kernels::Guarded<kernels::Adam>& step, const torch::Tensor& norm, torch::Tensor parameter, const torch::Tensor& gradient, torch::Tensor mean,
                  torch::Tensor square);

}  // namespace manyranks
