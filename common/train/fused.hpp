// The kernels on tensors: picks CPU or GPU by the tensor's device, and the current stream. float32, contiguous.
#pragma once

#include "launch/torch.hpp"

#include "kernels/functors.hpp"  // kernels::Sgd, kernels::Adam

namespace manyranks {

void fused_sgd(const kernels::Sgd& step, torch::Tensor parameter, const torch::Tensor& gradient, torch::Tensor velocity);
void fused_adam(const kernels::Adam& step, torch::Tensor parameter, const torch::Tensor& gradient, torch::Tensor mean,
                torch::Tensor square);

// values *= factor; false if a result is not finite. On a GPU it waits for the answer.
bool scale_and_check(torch::Tensor values, double factor);

// In double and in an order fixed by the count: the same bits for any number of threads. On a GPU it waits for the answer.
double sum_of_squares(const torch::Tensor& values);

// The factor that brings a gradient of this squared norm down to `max_norm`, 1 if it is below. Goes into an optimiser's
// gradient_scale, so clipping costs no pass of its own. In a sharded job the squares of the shards are summed over ranks first.
double clip_factor(double squared_norm, double max_norm);

}  // namespace manyranks
