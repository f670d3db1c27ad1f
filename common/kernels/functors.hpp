// What each fused kernel does to one element: written once, compiled by g++ for the CPU and by nvcc for the GPU.
//
// Neither compiler may contract a*b+c into a fused multiply-add here (-ffp-contract=off, --fmad=false), and division and
// square root are IEEE on both: an element's result is the same bits on every CPU, on every GPU, in a vector body or in
// the tail behind it. The kernels are bound by memory, so that costs nothing.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define MANYRANKS_HD __host__ __device__ __forceinline__
#else
#define MANYRANKS_HD inline __attribute__((always_inline))
#endif

namespace manyranks::kernels {

// SGD with momentum, as torch.optim.SGD (no dampening, no Nesterov). 20 bytes moved per element: reads parameter, gradient
// and momentum, writes parameter and momentum. A zero momentum buffer gives torch's first step. The two fused multiply-adds are
// written out where torch's operators have them (add with alpha): its steps and ours are then the same bits, and a comparison of
// long training runs says something, where chaos would otherwise magnify one rounding.
struct Sgd {
  float learning_rate = 0.01F;
  float momentum = 0.9F;
  float weight_decay = 0.0F;
  float gradient_scale = 1.0F;  // 1/world_size, 1/loss scale or a clipping factor, without another pass over memory

  MANYRANKS_HD void operator()(float& parameter, float gradient, float& velocity) const {
    const float total = fmaf(weight_decay, parameter, gradient * gradient_scale);
    velocity = momentum * velocity + total;
    parameter = fmaf(-learning_rate, velocity, parameter);
  }
};

// Adam, and AdamW if `decay_factor` < 1. 28 bytes moved per element. What depends only on the step (bias corrections) is
// computed once on the host, in double: see adam_at_step().
struct Adam {
  float beta1 = 0.9F, beta2 = 0.999F;
  float one_minus_beta1 = 0.1F, one_minus_beta2 = 0.001F;
  float epsilon = 1e-8F;
  float step_size = 0.0F;        // learning rate / (1 - beta1^t)
  float root_correction = 1.0F;  // 1 / sqrt(1 - beta2^t)
  float weight_decay = 0.0F;     // Adam: added to the gradient
  float decay_factor = 1.0F;     // AdamW: 1 - learning rate * weight decay, multiplies the parameter
  float gradient_scale = 1.0F;

  MANYRANKS_HD void operator()(float& parameter, float gradient, float& mean, float& square) const {
    const float total = gradient * gradient_scale + weight_decay * parameter;
    mean = beta1 * mean + one_minus_beta1 * total;
    square = beta2 * square + one_minus_beta2 * (total * total);
    const float denominator = sqrtf(square) * root_correction + epsilon;
    parameter = parameter * decay_factor - step_size * (mean / denominator);
  }
};

// Multiplies by `factor` and says whether the result is not finite (inf - inf and nan - nan are nan, not 0).
struct Scale {
  float factor = 1.0F;

  MANYRANKS_HD bool operator()(float& value) const {
    value *= factor;
    return !(value - value == 0.0F);
  }
};

// One term of a sum of squares. The product of two floats is exact in double.
struct Square {
  MANYRANKS_HD double operator()(float value) const { return static_cast<double>(value) * static_cast<double>(value); }
};

struct AdamSettings {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
  bool decoupled = false;  // AdamW
  double gradient_scale = 1.0;
};

// The functor of step t = 1, 2, ...
inline Adam adam_at_step(const AdamSettings& settings, long step) {
  Adam adam;
  adam.beta1 = static_cast<float>(settings.beta1);
  adam.beta2 = static_cast<float>(settings.beta2);
  adam.one_minus_beta1 = static_cast<float>(1.0 - settings.beta1);
  adam.one_minus_beta2 = static_cast<float>(1.0 - settings.beta2);
  adam.epsilon = static_cast<float>(settings.epsilon);
  adam.step_size = static_cast<float>(settings.learning_rate / (1.0 - std::pow(settings.beta1, static_cast<double>(step))));
  adam.root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(settings.beta2, static_cast<double>(step))));
  if (settings.decoupled) {
    adam.decay_factor = static_cast<float>(1.0 - settings.learning_rate * settings.weight_decay);
  } else {
    adam.weight_decay = static_cast<float>(settings.weight_decay);
  }
  adam.gradient_scale = static_cast<float>(settings.gradient_scale);
  return adam;
}

}  // namespace manyranks::kernels
