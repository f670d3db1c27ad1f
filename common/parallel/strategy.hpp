// One training loop for every way to share the work:
//
//   auto strategy = make_strategy("zero2", world, *model, {.make_optimizer = ...});
//   auto loss = cross_entropy(strategy->forward(x), y);
//   loss.backward();
//   strategy->step(learning_rate);
#pragma once

#include "launch/torch.hpp"

#include <memory>
#include <string>
#include <vector>

#include "parallel/gradient_buckets.hpp"  // BucketOptions
#include "parallel/zero.hpp"              // MakeOptimizer

namespace manyranks {

class Model;

struct StrategyOptions {
  MakeOptimizer make_optimizer;
  BucketOptions buckets = {};  // zero1, zero2, zero3: `bytes` only
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  virtual torch::Tensor forward(torch::Tensor x) = 0;
  // In place of forward and backward, on a rank that has no samples for this step.
  virtual void follow() {}
  // After backward: gradients are summed over ranks, multiplied by gradient_scale (by default 1/world size), and applied.
  virtual void step(double learning_rate, double gradient_scale) = 0;
  virtual void step(double learning_rate) = 0;
  // All values, copied, in the order of trainable_parameters(model). Collective.
  virtual std::vector<torch::Tensor> gather_parameters() = 0;

  // By this rank since the communicator's counters were reset, on whatever communicator the strategy uses.
  virtual int64_t bytes_sent() const = 0;

  // What this rank must keep to go on with the same bits: parameters and optimiser state, whole or its shard. The tensors are
  // the state itself: loading copies into them. Then set_steps_done(); make the strategy with buckets.rebuild = false.
  virtual NamedTensors state() = 0;
  virtual void set_steps_done(int64_t steps) = 0;
};

// alone (no communication: what compute costs) | naive | bucketed | ddp | horovod | zero1 | zero2 | zero3. Collective.
std::unique_ptr<Strategy> make_strategy(const std::string& kind, Communicator& world, Model& model, const StrategyOptions& options);
std::vector<std::string> strategy_kinds();

MakeOptimizer make_sgd(double momentum = 0.9, double weight_decay = 0.0);
MakeOptimizer make_adam();
MakeOptimizer make_optimizer_by_name(const std::string& name);  // sgd | adam

}  // namespace manyranks
