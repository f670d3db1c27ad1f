#pragma once

#include "kit.hpp"

namespace manyranks {

// The model and its data, seen from one rank: the gradients of its own samples for these parameters. The memory is the model's.
class Backward {
 public:
  virtual std::span<float> gradients(int step, std::span<const float> parameters) = 0;

 protected:
  ~Backward() = default;
};

// SGD with momentum, `steps` times: v = momentum v + g; p = p - rate v; g is the mean over ranks. The number of parameters divides by the number of
// ranks. Every rank ends with the same, whole parameters.
extern "C" void train_zero1(Ranks& ranks, std::span<float> parameters, Backward& backward, int steps, float rate, float momentum);

}  // namespace manyranks
