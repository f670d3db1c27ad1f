#include "models/gelu.hpp"

#include "kernels/kernels.hpp"

namespace manyranks {
namespace {

// Keeps x for backward, as LibTorch's does: neither the output nor the slope.
struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& input) {
    context->save_for_backward({input});
    const auto x = input.contiguous();
    auto out = torch::empty_like(x);
    kernels::cpu::gelu(out.data_ptr<float>(), x.data_ptr<float>(), x.numel());
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto input = context->get_saved_variables()[0];
    if (torch::GradMode::is_enabled()) return {at::gelu_backward(gradients[0], input, "tanh")};  // a gradient of this gradient is wanted: LibTorch knows it
    const auto x = input.contiguous(), gradient = gradients[0].contiguous();
    auto out = torch::empty_like(x);
    kernels::cpu::gelu_backward(out.data_ptr<float>(), x.data_ptr<float>(), gradient.data_ptr<float>(), x.numel());
    return {out};
  }
};

}  // namespace

torch::Tensor gelu_tanh(const torch::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == torch::kFloat32 ? GeluFunction::apply(x) : torch::gelu(x, "tanh");
}

}  // namespace manyranks
