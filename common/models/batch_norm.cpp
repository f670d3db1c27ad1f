#include <ATen/OpMathType.h>
#include <torch/nn.h>
#include "models/batch_norm.hpp"

namespace manyranks {

// One exchange: samples, sum, and sum of squares, per channel. Each rank's own mean and variance are made in float, also of a half
// x (whose 8 or 11 bits would round them), and free of cancellation; what is added and subtracted between ranks is double.
torch::Tensor BatchNormImpl::forward(const torch::Tensor& x) {
  if (!sum_over_ranks || !is_training()) return torch::nn::BatchNorm2dImpl::forward(x);
  const int64_t channels = x.size(1), mine = x.numel() / channels;
  const torch::Tensor wide = x.to(at::toOpMathType(x.scalar_type()));  // x itself where it is not half
  const auto doubles = x.options().dtype(torch::kDouble);
  torch::Tensor row = torch::zeros({2 * channels + 1}, doubles.requires_grad(false));
  if (mine > 0) {
    const auto [variance, mean] = torch::var_mean(wide, {0, 2, 3}, /*unbiased=*/false);
    const torch::Tensor m = mean.to(torch::kDouble);
    row = torch::cat({m * mine, (variance.to(torch::kDouble) + m * m) * mine, torch::full({1}, mine, doubles.requires_grad(false))});
  } else {
    row = row + wide.sum().to(torch::kDouble);  // zero, but part of the graph: backward has an exchange too, and all must join it
  }
  const torch::Tensor total = sum_over_ranks(row);
  const double samples = total[2 * channels].item<double>();
  const torch::Tensor mean = total.narrow(0, 0, channels) / samples;
  const torch::Tensor variance = total.narrow(0, channels, channels) / samples - mean * mean;
  {
    const torch::NoGradGuard no_grad;
    const double share = options.momentum().value_or(0.1), unbiased = samples / std::max(1.0, samples - 1);
    num_batches_tracked += 1;
    running_mean.mul_(1 - share).add_(mean.to(torch::kFloat), share);
    running_var.mul_(1 - share).add_(variance.to(torch::kFloat), share * unbiased);
  }
  // y = x a + b, with a and b of (C): one pass over x, and back in the type it came in, as LibTorch's own layer does.
  const torch::Tensor a = weight * torch::rsqrt(variance + options.eps()).to(torch::kFloat);
  const torch::Tensor b = bias - mean.to(torch::kFloat) * a;
  return torch::addcmul(b.view({1, channels, 1, 1}), wide, a.view({1, channels, 1, 1})).to(x.scalar_type());
}

}  // namespace manyranks
