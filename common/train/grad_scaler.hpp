// Dynamic loss scaling, with the rule and the defaults of PyTorch's GradScaler: multiply the loss by a scale so that small gradients
// do not underflow in half precision; where one overflows, skip the step and halve the scale; after many good steps double it.
// PyTorch's falls to 0 where every step overflows, and trains no more; this one says so (exit 70).
//
//   (loss * scaler.scale()).backward();
//   const bool overflow = ...;              // a gradient is not finite, on any rank
//   if (!overflow) optimizer.step(rate, scaler.inverse());
//   scaler.update(overflow);
#pragma once

#include <cstdint>

namespace manyranks {

struct ScalerOptions {
  float initial = 65536.0F;
  double growth = 2.0, backoff = 0.5;
  int64_t interval = 2000;  // good steps in a row before the scale grows
};

class GradScaler {
 public:
  explicit GradScaler(ScalerOptions options = {});

  float scale() const { return scale_; }
  // What gradients are multiplied by. Rounded to float once, as PyTorch does.
  float inverse() const { return static_cast<float>(1.0 / static_cast<double>(scale_)); }
  void update(bool overflow);

  int64_t skipped() const { return skipped_; }

  // What a checkpoint must hold to go on with the same scales.
  struct State {
    float scale;
    int64_t good_steps, skipped;
  };
  State state() const { return {scale_, good_steps_, skipped_}; }
  void load(State state) { scale_ = state.scale, good_steps_ = state.good_steps, skipped_ = state.skipped; }

 private:
  ScalerOptions options_;
  float scale_;
  int64_t good_steps_ = 0, skipped_ = 0;
};

}  // namespace manyranks
