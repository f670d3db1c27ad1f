#include "measure/verify.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include "launch/torch.hpp"

#include <cmath>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

void expect_same_kind(const std::string& name, const torch::Tensor& got, const torch::Tensor& expected) {
  if (!got.defined() || !expected.defined())
    throw verify_error(name, fmt::format("the {} tensor is undefined", got.defined() ? "expected" : "resulting"));
  if (got.sizes() != expected.sizes())
    throw verify_error(name, fmt::format("shape [{}], expected [{}]", fmt::join(got.sizes(), ", "), fmt::join(expected.sizes(), ", ")));
  if (got.scalar_type() != expected.scalar_type())
    throw verify_error(name, fmt::format("dtype {}, expected {}", c10::toString(got.scalar_type()), c10::toString(expected.scalar_type())));
}

// Bytes of a contiguous CPU copy, (numel, bytes per element): bits of any dtype compare as integers.
torch::Tensor bits_of(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU).contiguous().reshape({-1}).view(torch::kUInt8).reshape({tensor.numel(), tensor.element_size()});
}

torch::Tensor doubles_of(const torch::Tensor& tensor) { return tensor.detach().to(torch::kCPU, torch::kFloat64).contiguous().reshape({-1}); }

double relative_norm(const torch::Tensor& got, const torch::Tensor& expected) {
  const double size = expected.norm().item<double>();
  return (got - expected).norm().item<double>() / (size > 0 ? size : 1.0);
}

std::vector<int64_t> coordinates(int64_t flat, at::IntArrayRef sizes) {
  std::vector<int64_t> index(sizes.size());
  for (size_t d = sizes.size(); d-- > 0; flat /= sizes[d]) index[d] = flat % sizes[d];
  return index;
}

// "3 of 20 elements differ, first at [1, 2]: 0.5, expected 0.25; largest difference 0.5, norm-relative 1e-3"
std::string difference(const torch::Tensor& got, const torch::Tensor& expected, const torch::Tensor& differs) {
  const auto where = differs.nonzero();
  const int64_t first = where[0].item<int64_t>();
  const auto a = doubles_of(got), b = doubles_of(expected);
  return fmt::format("{} of {} elements differ, first at [{}]: {:.9g}, expected {:.9g}; largest difference {:.3g}, norm-relative {:.3g}",
                     where.size(0), got.numel(), fmt::join(coordinates(first, got.sizes()), ", "), a[first].item<double>(), b[first].item<double>(),
                     (a - b).abs().max().item<double>(), relative_norm(a, b));
}

void expect_same_count(const std::string& name, size_t got, size_t expected) {
  if (got != expected) throw verify_error(name, fmt::format("{} tensors, expected {}", got, expected));
}

}  // namespace

void expect_equal_bits(const std::string& name, const torch::Tensor& got, const torch::Tensor& expected) {
  expect_same_kind(name, got, expected);
  if (got.numel() == 0) return;
  const auto differs = (bits_of(got) != bits_of(expected)).any(1);
  if (differs.any().item<bool>()) throw verify_error(name, "not the same bits: " + difference(got, expected, differs));
}

void expect_close(const std::string& name, const torch::Tensor& got, const torch::Tensor& expected, double rtol) {
  expect_same_kind(name, got, expected);
  if (got.numel() == 0) return;
  const auto a = doubles_of(got), b = doubles_of(expected);
  const auto same = (a == b).logical_or(a.isnan().logical_and(b.isnan()));
  // Where both hold the same NaN or infinity there is no difference to take the norm of.
  const auto finite_b = torch::where(same.logical_and(b.isfinite().logical_not()), torch::zeros_like(b), b);
  const auto finite_a = torch::where(same.logical_and(a.isfinite().logical_not()), torch::zeros_like(a), a);
  const double error = relative_norm(finite_a, finite_b);
  if (!(error <= rtol))  // NaN must fail
    throw verify_error(name, fmt::format("norm-relative difference {:.3g} is over {:.3g}: {}", error, rtol, difference(got, expected, same.logical_not())));
}

void expect_equal_bits(const std::string& name, const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected) {
  expect_same_count(name, got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) expect_equal_bits(fmt::format("{}[{}]", name, i), got[i], expected[i]);
}

void expect_close(const std::string& name, const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected, double rtol) {
  expect_same_count(name, got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) expect_close(fmt::format("{}[{}]", name, i), got[i], expected[i], rtol);
}

}  // namespace manyranks
