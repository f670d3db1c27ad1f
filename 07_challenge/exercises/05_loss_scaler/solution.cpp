// Exercise: repair the loss scaler. Lesson: 05_mixed_precision/02_loss_scaling.cpp
//
// Small gradients vanish in fp16, so the loss is multiplied by a large scale, and the gradients are divided by it before the step. If the scale
// is too large they overflow: then the step is skipped and the scale halved; after a while without overflow it is doubled. The version below came
// with four faults. On one device it looks healthy for a long time. With several ranks their models drift apart on the first overflow,
// without an error message.
#include "05_loss_scaler.hpp"  // Ranks, Scaler

#include <cmath>

using namespace manyranks;

bool manyranks::unscale_and_update(Ranks& ranks, Scaler& scaler, std::span<float> gradients) {
  // <<< todo
  // Four repairs: all ranks must come to the same decision (with one small collective); what counts as bad; when the count of good steps starts
  // again; and by which scale the gradients are divided.
  // <<< until then
  // (void)ranks;
  // bool overflow = false;
  // for (const float g : gradients) overflow = overflow || std::isinf(g);
  // if (overflow) {
  //   scaler.scale *= 0.5f;
  //   return false;
  // }
  // if (++scaler.good_steps == scaler.growth_interval) {
  //   scaler.scale *= 2.0f;
  //   scaler.good_steps = 0;
  // }
  // for (float& g : gradients) g /= scaler.scale;
  // return true;
  // <<< solution
  float bad = 0;
  for (const float g : gradients)
    if (!std::isfinite(g)) bad = 1;  // inf, and NaN: inf - inf somewhere on the way
  ranks.all_reduce_max({&bad, 1});   // one rank's overflow is everybody's: the sum would carry it to all
  if (bad > 0) {
    scaler.scale *= 0.5f;
    scaler.good_steps = 0;
    return false;
  }
  for (float& g : gradients) g /= scaler.scale;  // the scale that was used, before it grows
  if (++scaler.good_steps == scaler.growth_interval) {
    scaler.scale *= 2.0f;
    scaler.good_steps = 0;
  }
  return true;
  // >>>
}
