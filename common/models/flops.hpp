// How much arithmetic a model needs, for MFU (model FLOPs utilisation) and the roofline.
#pragma once

#include "launch/torch.hpp"

#include "models/model.hpp"

namespace manyranks {

// Multiply-adds, each as 2, of the convolutions, linear layers, matrix products and attention that run while `body` does,
// counted from the shapes they really meet. Activations, norms and poolings are not counted, as is the custom.
double count_flops(const std::function<void()>& body);

// One forward pass on `input`, in evaluation mode and without gradients. Attention counts in full, not its causal half.
double forward_flops(Model& model, const torch::Tensor& input);

// A training step costs three times the forward pass: backward makes two products of the same size for each (gradients of
// input and of weight). For gpt the formula that published MFU figures use: (6 N + 6 L C T) T per sequence of T tokens, N the
// parameters in matrix products, attention at its causal half.
double train_flops_per_sample(Model& model);
double gpt_train_flops_per_token(const Model& model);

// Model FLOPs per second over peak FLOPs per second.
inline double mfu(double flops_per_sample, double samples_per_s, double peak_flops_per_s) {
  return flops_per_sample * samples_per_s / peak_flops_per_s;
}

}  // namespace manyranks
