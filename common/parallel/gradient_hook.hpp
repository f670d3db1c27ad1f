// A function that runs as soon as a parameter's gradient is complete: once per backward, also if the parameter is used
// twice, and never if it is not used. On the thread that called backward() (CPU), or on the device's own (CUDA).
#pragma once

#include "launch/torch.hpp"

#include <functional>
#include <memory>

namespace manyranks {

class GradientHook {
 public:
  GradientHook(const torch::Tensor& parameter, std::function<void()> function);
  ~GradientHook() { *function_ = nullptr; }  // a graph that still lives calls nobody

 private:
  std::shared_ptr<std::function<void()>> function_;
  c10::intrusive_ptr<torch::autograd::Node> node_;  // the parameter holds its node only weakly: without this the hook is gone
};

}  // namespace manyranks
