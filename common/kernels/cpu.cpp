// One loop per kernel, compiled for several instruction sets; the loader picks when the program starts, so a binary moves
// between nodes. The bits are the same in all of them: see functors.hpp.
#include <algorithm>

#include "kernels/gelu.hpp"
#include "kernels/guarded.hpp"
#include "kernels/kernels.hpp"

// x86-64-v3 is AVX2 with fused multiply-adds, which "avx2" alone leaves out; "arch=haswell" would be that one Intel processor and no other.
// target_clones works through ifunc resolvers, which run before a sanitizer is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(MANYRANKS_SANITIZE)
#define MANYRANKS_CLONES __attribute__((target_clones("avx512f", "arch=x86-64-v3", "default")))
#else
#define MANYRANKS_CLONES
#endif

namespace manyranks::kernels::cpu {

MANYRANKS_CLONES
void sgd(const Sgd& step, float* __restrict__ parameter, const float* __restrict__ gradient, float* __restrict__ velocity,
         int64_t count) {
  const Sgd local = step;  // `step` could alias the buffers as far as the compiler knows
  for (int64_t i = 0; i < count; ++i) local(parameter[i], gradient[i], velocity[i]);
}

MANYRANKS_CLONES
void adam(const Adam& step, float* __restrict__ parameter, const float* __restrict__ gradient, float* __restrict__ mean,
          float* __restrict__ square, int64_t count) {
  const Adam local = step;
  for (int64_t i = 0; i < count; ++i) local(parameter[i], gradient[i], mean[i], square[i]);
}

MANYRANKS_CLONES
bool scale(const Scale& scale, float* __restrict__ values, int64_t count) {
  const Scale local = scale;
  unsigned bad = 0;  // an OR instead of an early exit: it vectorises, and all values are scaled either way
  for (int64_t i = 0; i < count; ++i) bad |= local(values[i]) ? 1U : 0U;
  return bad == 0;
}

MANYRANKS_CLONES
double sum_of_squares(const float* __restrict__ values, int64_t count) {
  // Sixteen running sums, not one: additions of one sum must wait for each other, those of sixteen need not, and the order
  // stays fixed (a compiler may not reorder it by itself).
  constexpr int64_t lanes = 16;
  const Square square;
  double sums[lanes] = {};
  const int64_t whole = count / lanes * lanes;
  for (int64_t i = 0; i < whole; i += lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) sums[lane] += square(values[i + lane]);
  }
  for (int64_t i = whole; i < count; ++i) sums[i - whole] += square(values[i]);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

MANYRANKS_CLONES
void gelu(float* __restrict__ out, const float* __restrict__ x, int64_t count) {
  const Gelu gelu;
  for (int64_t i = 0; i < count; ++i) out[i] = gelu(x[i]);
}

MANYRANKS_CLONES
void gelu_backward(float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ gradient, int64_t count) {
  const Gelu gelu;
  for (int64_t i = 0; i < count; ++i) out[i] = gradient[i] * gelu.slope(x[i]);
}

void guarded_sgd(const Guarded<Sgd>& guarded, const double* squared_norm, float* parameter, const float* gradient, float* velocity, int64_t count) {
  if (Guard::accepts(*squared_norm)) sgd(guarded.resolved(*squared_norm), parameter, gradient, velocity, count);
}

void guarded_adam(const Guarded<Adam>& guarded, const double* squared_norm, float* parameter, const float* gradient, float* mean, float* square, int64_t count) {
  if (Guard::accepts(*squared_norm)) adam(guarded.resolved(*squared_norm), parameter, gradient, mean, square, count);
}

}  // namespace manyranks::kernels::cpu
