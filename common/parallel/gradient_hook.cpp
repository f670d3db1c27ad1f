#include "parallel/gradient_hook.hpp"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

namespace manyranks {

GradientHook::GradientHook(const torch::Tensor& parameter, std::function<void()> function)
    : function_(std::make_shared<std::function<void()>>(std::move(function))), node_(torch::autograd::impl::grad_accumulator(parameter)) {
  using torch::autograd::variable_list;
  node_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [function = function_](const variable_list& outputs, const variable_list&) -> variable_list {
        torch::NoGradGuard no_grad;
        if (*function) (*function)();
        return outputs;
      }));
}

}  // namespace manyranks
