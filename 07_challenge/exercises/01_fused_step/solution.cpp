// Exercise: fuse the optimiser step. Lesson: 01_single_gpu/05_fused_optimizer.cpp
//
// SGD with momentum and weight decay, written as a framework's operators would do it, goes over memory five times (below). An
// optimiser does almost no arithmetic: its time is the bytes it moves. Do the same in one pass: each of the three arrays is
// read once and written once per element, and nothing is allocated.
#include "01_fused_step.hpp"  // Array, SgdSettings

using namespace manyranks;

namespace {
// The reference: right, and slow. After the step the gradients are zero, ready for the next backward pass.
[[maybe_unused]] void sgd_step_in_five_passes(Array& parameters, Array& velocity, Array& gradients, const SgdSettings& s) {
  const size_t n = parameters.size();
  for (size_t i = 0; i < n; ++i) gradients.store(i, gradients.load(i) * s.gradient_scale);
  for (size_t i = 0; i < n; ++i) gradients.store(i, gradients.load(i) + s.weight_decay * parameters.load(i));
  for (size_t i = 0; i < n; ++i) velocity.store(i, s.momentum * velocity.load(i) + gradients.load(i));
  for (size_t i = 0; i < n; ++i) parameters.store(i, parameters.load(i) - s.learning_rate * velocity.load(i));
  for (size_t i = 0; i < n; ++i) gradients.store(i, 0.0f);
}
}  // namespace

void manyranks::sgd_step(Array& parameters, Array& velocity, Array& gradients, const SgdSettings& settings) {
  // <<< todo
  // The same step in one pass: one load and one store per element of each array. What is used twice waits in a local variable.
  // <<< until then
  // (void)parameters, (void)velocity, (void)gradients, (void)settings;
  // <<< solution
  for (size_t i = 0; i < parameters.size(); ++i) {
    const float p = parameters.load(i);
    const float g = gradients.load(i) * settings.gradient_scale + settings.weight_decay * p;
    const float v = settings.momentum * velocity.load(i) + g;
    velocity.store(i, v);
    parameters.store(i, p - settings.learning_rate * v);
    gradients.store(i, 0.0f);
  }
  // >>>
}
