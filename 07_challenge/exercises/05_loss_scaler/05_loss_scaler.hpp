#pragma once

#include "kit.hpp"

namespace manyranks {

struct Scaler {
  float scale = 65536;
  int good_steps = 0;       // since the last change of scale
  int growth_interval = 4;  // PyTorch: 2000
};

// gradients: in, this rank's gradients of loss * scale, before they are summed over ranks; out, divided by the scale that the loss was multiplied with.
// Returns whether the optimiser may step. Updates the scaler: halved if any gradient on any rank is not finite (the step is skipped, and what the
// gradients hold then does not matter); doubled after growth_interval good steps in a row.
extern "C" bool unscale_and_update(Ranks& ranks, Scaler& scaler, std::span<float> gradients);

}  // namespace manyranks
