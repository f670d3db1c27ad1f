#include "train/fused.hpp"

#include <ATen/Parallel.h>

#include <atomic>
#include <cmath>

#include "kernels/kernels.hpp"
#include "launch/errors.hpp"
#include "train/guarded.hpp"

#if defined(MANYRANKS_HAVE_CUDA)
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace manyranks {
namespace {

// Elements per thread below which threads cost more than they give; also the block of sum_of_squares, where it decides the
// order of additions: it must not depend on the number of threads.
constexpr int64_t grain = 65536;

[[noreturn]] void no_kernel(const char* what, const torch::Tensor& tensor) {
  throw unavailable_error(what, "no kernel for device " + tensor.device().str());
}

void check(const char* what, const torch::Tensor& like, std::initializer_list<std::reference_wrapper<const torch::Tensor>> others) {
  const auto one = [&](const torch::Tensor& tensor) {
    if (tensor.scalar_type() != torch::kFloat) throw usage_error(what, "a buffer is not float32");
    if (!tensor.is_contiguous()) throw usage_error(what, "a buffer is not contiguous");
    if (tensor.numel() != like.numel()) throw usage_error(what, "buffers differ in size");
    if (tensor.device() != like.device()) throw usage_error(what, "buffers are on different devices");
  };
  if (!like.is_cpu() && !like.is_cuda()) no_kernel(what, like);
  one(like);
  for (const torch::Tensor& tensor : others) one(tensor);
}

float* data(const torch::Tensor& tensor) { return tensor.data_ptr<float>(); }

#if defined(MANYRANKS_HAVE_CUDA)
// The device of the tensor for the launch, and its current stream.
struct OnDevice {
  explicit OnDevice(const torch::Tensor& tensor)
      : guard(tensor.device()), stream(c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream()) {}
  c10::cuda::CUDAGuard guard;
  void* stream;
};
#endif

}  // namespace

void fused_sgd(const kernels::Sgd& step, torch::Tensor parameter, const torch::Tensor& gradient, torch::Tensor velocity) {
  check("fused_sgd", parameter, {gradient, velocity});
  float *p = data(parameter), *g = data(gradient), *v = data(velocity);
  if (parameter.is_cpu()) {
    at::parallel_for(0, parameter.numel(), grain,
                     [&](int64_t begin, int64_t end) { kernels::cpu::sgd(step, p + begin, g + begin, v + begin, end - begin); });
    return;
  }
#if defined(MANYRANKS_HAVE_CUDA)
  if (parameter.is_cuda()) return kernels::gpu::sgd(step, p, g, v, parameter.numel(), OnDevice(parameter).stream);
#endif
  no_kernel("fused_sgd", parameter);
}

void fused_adam(const kernels::Adam& step, torch::Tensor parameter, const torch::Tensor& gradient, torch::Tensor mean,
                torch::Tensor square) {
  check("fused_adam", parameter, {gradient, mean, square});
  float *p = data(parameter), *g = data(gradient), *m = data(mean), *s = data(square);
  if (parameter.is_cpu()) {
    at::parallel_for(0, parameter.numel(), grain, [&](int64_t begin, int64_t end) {
      kernels::cpu::adam(step, p + begin, g + begin, m + begin, s + begin, end - begin);
    });
    return;
  }
#if defined(MANYRANKS_HAVE_CUDA)
  if (parameter.is_cuda()) return kernels::gpu::adam(step, p, g, m, s, parameter.numel(), OnDevice(parameter).stream);
#endif
  no_kernel("fused_adam", parameter);
}

bool scale_and_check(torch::Tensor values, double factor) {
  check("scale_and_check", values, {});
  const kernels::Scale scale{static_cast<float>(factor)};
  float* v = data(values);
  if (values.is_cpu()) {
    std::atomic<bool> finite = true;
    at::parallel_for(0, values.numel(), grain, [&](int64_t begin, int64_t end) {
      if (!kernels::cpu::scale(scale, v + begin, end - begin)) finite = false;
    });
    return finite;
  }
#if defined(MANYRANKS_HAVE_CUDA)
  if (values.is_cuda()) {
    const torch::Tensor not_finite = torch::zeros({1}, values.options());
    kernels::gpu::scale(scale, v, values.numel(), data(not_finite), OnDevice(values).stream);
    return not_finite.item<float>() == 0.0F;
  }
#endif
  no_kernel("scale_and_check", values);
}

double sum_of_squares(const torch::Tensor& values) {
  check("sum_of_squares", values, {});
  const float* v = data(values);
  const int64_t count = values.numel();
  if (values.is_cpu()) {
    const int64_t blocks = (count + grain - 1) / grain;
    std::vector<double> partial(static_cast<size_t>(blocks));
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t from = block * grain;
        partial[static_cast<size_t>(block)] = kernels::cpu::sum_of_squares(v + from, std::min(grain, count - from));
      }
    });
    double total = 0;
    for (const double sum : partial) total += sum;
    return total;
  }
  if (values.is_cuda()) return squared_norm(values).item<double>();
  no_kernel("sum_of_squares", values);
}

torch::Tensor squared_norm(const torch::Tensor& gradients) {
  check("squared_norm", gradients, {});
#if defined(MANYRANKS_HAVE_CUDA)
  if (gradients.is_cuda()) {
    const torch::Tensor space = torch::empty({kernels::gpu::sum_of_squares_workspace + 1}, gradients.options().dtype(torch::kDouble));
    auto* result = space.data_ptr<double>();
    kernels::gpu::sum_of_squares(data(gradients), gradients.numel(), result, result + 1, OnDevice(gradients).stream);
    return space.narrow(0, 0, 1);
  }
#endif
  if (!gradients.is_cpu()) no_kernel("squared_norm", gradients);
  return torch::full({1}, sum_of_squares(gradients), torch::kDouble);
}

namespace {

const double* norm_pointer(const char* what, const torch::Tensor& norm, const torch::Tensor& like) {
  if (norm.scalar_type() != torch::kDouble || norm.numel() != 1 || norm.device() != like.device()) throw usage_error(what, "the squared norm is not one double on the buffers' device");
  return norm.data_ptr<double>();
}

}  // namespace

void guarded_sgd(const kernels::Guarded<kernels::Sgd>& step, const torch::Tensor& norm, torch::Tensor parameter, const torch::Tensor& gradient, torch::Tensor velocity) {
  check("guarded_sgd", parameter, {gradient, velocity});
  const double* n = norm_pointer("guarded_sgd", norm, parameter);
  float *p = data(parameter), *g = data(gradient), *v = data(velocity);
  if (parameter.is_cpu()) {
    at::parallel_for(0, parameter.numel(), grain,
                     [&](int64_t begin, int64_t end) { kernels::cpu::guarded_sgd(step, n, p + begin, g + begin, v + begin, end - begin); });
    return;
  }
#if defined(MANYRANKS_HAVE_CUDA)
  if (parameter.is_cuda()) return kernels::gpu::guarded_sgd(step, n, p, g, v, parameter.numel(), OnDevice(parameter).stream);
#endif
  no_kernel("guarded_sgd", parameter);
}

void guarded_adam(const kernels::Guarded<kernels::Adam>& step, const torch::Tensor& norm, torch::Tensor parameter, const torch::Tensor& gradient, torch::Tensor mean,
                  torch::Tensor square) {
  check("guarded_adam", parameter, {gradient, mean, square});
  const double* n = norm_pointer("guarded_adam", norm, parameter);
  float *p = data(parameter), *g = data(gradient), *m = data(mean), *s = data(square);
  if (parameter.is_cpu()) {
    at::parallel_for(0, parameter.numel(), grain, [&](int64_t begin, int64_t end) {
      kernels::cpu::guarded_adam(step, n, p + begin, g + begin, m + begin, s + begin, end - begin);
    });
    return;
  }
#if defined(MANYRANKS_HAVE_CUDA)
  if (parameter.is_cuda()) return kernels::gpu::guarded_adam(step, n, p, g, m, s, parameter.numel(), OnDevice(parameter).stream);
#endif
  no_kernel("guarded_adam", parameter);
}

double clip_factor(double squared_norm, double max_norm) {
  const double norm = std::sqrt(squared_norm);
  return norm > max_norm ? max_norm / norm : 1.0;
}

}  // namespace manyranks
