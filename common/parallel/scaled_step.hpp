// Loss scaling around any strategy, mesh or pipeline: the ranks look at all their gradients, agree whether one overflowed, and then all
// step or all skip. It works through the optimisers, so that whoever sums gradients need not know of it.
//
//   ScaledStep scaled(world, amp);
//   auto strategy = make_strategy("zero2", world, *model, {scaled.wrap(make_adam())});
//   scaled.scale(loss).backward();
//   strategy->step(rate);                   // unscales; skips on all ranks if a gradient of any rank is not finite
#pragma once

#include "launch/torch.hpp"

#include <memory>

#include "parallel/zero.hpp"      // MakeOptimizer
#include "train/amp.hpp"          // Amp
#include "train/grad_scaler.hpp"  // GradScaler

namespace manyranks {

class Communicator;

class ScaledStep {
 public:
  // `world`: everybody who must decide alike: all ranks of the job, also where parts of the model lie on different ranks.
  // Without loss scaling (off, bf16) nothing is looked at, sent or changed.
  ScaledStep(Communicator& world, const Amp& amp) : ScaledStep(world, amp, amp.scaling()) {}
  ScaledStep(Communicator& world, const Amp& amp, ScalerOptions options);
  ~ScaledStep();
  ScaledStep(const ScaledStep&) = delete;
  ScaledStep& operator=(const ScaledStep&) = delete;

  torch::Tensor scale(const torch::Tensor& loss) const;  // loss * scale, or the loss itself

  // Optimisers made by the result step together: the first that is asked to in a step decides for all, with one all-reduce of one number;
  // the last ends the step and updates the scale. Every one must be asked in every step, on every rank.
  MakeOptimizer wrap(MakeOptimizer make);

  // False for a step in a strategy's life that found an overflow. Valid after the step.
  bool stepped() const;
  const GradScaler& scaler() const;
  GradScaler& scaler();

 private:
  class Group;
  class Member;
  std::shared_ptr<Group> group_;
};

}  // namespace manyranks
