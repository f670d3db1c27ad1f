#include "train/optimizer.hpp"

#include "train/fused.hpp"

namespace manyranks {

Sgd::Sgd(torch::Tensor parameters, torch::Tensor gradients, SgdOptions options)
    : Optimizer(std::move(parameters), std::move(gradients)), options_(options), velocity_(torch::zeros_like(parameters_)) {}

void Sgd::step(double learning_rate, double gradient_scale) {
  ++steps_done_;
  const kernels::Sgd step{static_cast<float>(learning_rate), static_cast<float>(options_.momentum),
                          static_cast<float>(options_.weight_decay), static_cast<float>(gradient_scale)};
  fused_sgd(step, parameters_, gradients_, velocity_);
}

Adam::Adam(torch::Tensor parameters, torch::Tensor gradients, AdamOptions options)
    : Optimizer(std::move(parameters), std::move(gradients)), options_(options), mean_(torch::zeros_like(parameters_)),
      square_(torch::zeros_like(parameters_)) {}

void Adam::step(double learning_rate, double gradient_scale) {
  ++steps_done_;
  const kernels::AdamSettings settings{learning_rate,         options_.beta1,     options_.beta2, options_.epsilon,
                                       options_.weight_decay, options_.decoupled, gradient_scale};
  fused_adam(kernels::adam_at_step(settings, steps_done_), parameters_, gradients_, mean_, square_);
}

}  // namespace manyranks
