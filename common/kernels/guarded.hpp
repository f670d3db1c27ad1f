// What stands between backward and the optimiser in mixed precision, in two passes over memory:
//
//   operators   unscale (8 bytes per element), finite check, norm (4), clip (8), step (20 for SGD, 28 for Adam)
//   here        sum of squares (4)  ->  unscale, clip and step as one (20, 28), or nothing at all
//
// The sum of squares is the finite check too: in double no square of a float overflows, so it is not finite exactly if an element is
// not. It is read by pointer, on a GPU from the device's own memory: whether to step is decided there, and the host need not wait.
#pragma once

#include <cstdint>

#include "kernels/functors.hpp"  // Sgd, Adam

namespace manyranks::kernels {

struct Guard {
  double inverse_scale = 1.0;  // 1 / loss scale, times 1 / ranks where gradients are a sum over ranks
  double max_norm = 0.0;       // of the unscaled gradient of the whole model; 0: no clipping

  MANYRANKS_HD static bool accepts(double squared_norm) { return squared_norm - squared_norm == 0.0; }

  // Unscale before clipping: max_norm is compared with the norm that the gradient really has.
  MANYRANKS_HD float factor(double squared_norm) const {
    const double norm = sqrt(squared_norm) * inverse_scale;
    const double clip = max_norm > 0.0 && norm > max_norm ? max_norm / norm : 1.0;
    return static_cast<float>(inverse_scale * clip);
  }
};

// `squared_norm`: of the scaled gradients of the whole model, summed over ranks where they hold shards.
template <class Step>
struct Guarded {
  Step step;  // its gradient_scale is not used
  Guard guard;

  MANYRANKS_HD Step resolved(double squared_norm) const {
    Step all = step;
    all.gradient_scale = guard.factor(squared_norm);
    return all;
  }
};

namespace cpu {

void guarded_sgd(const Guarded<Sgd>& guarded, const double* squared_norm, float* parameter, const float* gradient, float* velocity, int64_t count);
void guarded_adam(const Guarded<Adam>& guarded, const double* squared_norm, float* parameter, const float* gradient, float* mean, float* square, int64_t count);

}  // namespace cpu

#if defined(MANYRANKS_HAVE_CUDA)
namespace gpu {

void guarded_sgd(const Guarded<Sgd>& guarded, const double* squared_norm, float* parameter, const float* gradient, float* velocity, int64_t count, void* stream);
void guarded_adam(const Guarded<Adam>& guarded, const double* squared_norm, float* parameter, const float* gradient, float* mean, float* square, int64_t count,
                  void* stream);

}  // namespace gpu
#endif

}  // namespace manyranks::kernels
