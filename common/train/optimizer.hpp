// Optimisers as one fused pass over flat buffers: the whole model, or any range of it (a ZeRO shard), with the same bits.
//
//   Adam optimizer(flat.parameters(), flat.gradients(), {.weight_decay = 0.1, .decoupled = true});
//   Adam mine(flat.parameters().narrow(0, begin, n), gradient_shard, {});       // state only for n elements
//   optimizer.step(schedule(step), clip_factor(sum_of_squares(flat.gradients()), 1.0));
#pragma once

#include "launch/torch.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace manyranks {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;
using Counters = std::map<std::string, int64_t>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Gradients are multiplied by gradient_scale on the way (1/world_size, 1/loss scale, a clipping factor) and left as they are.
  virtual void step(double learning_rate, double gradient_scale = 1.0) = 0;

  // What a checkpoint must hold. The tensors are the state itself: loading copies into them.
  virtual NamedTensors state() const = 0;
  int64_t steps_done() const { return steps_done_; }
  void set_steps_done(int64_t steps) { steps_done_ = steps; }

 protected:
  Optimizer(torch::Tensor parameters, torch::Tensor gradients)
      : parameters_(std::move(parameters)), gradients_(std::move(gradients)) {}

  torch::Tensor parameters_, gradients_;  // (count), float32
  int64_t steps_done_ = 0;
};

struct SgdOptions {
  double momentum = 0.9, weight_decay = 0.0;
};

// 4 bytes of state per element.
class Sgd : public Optimizer {
 public:
  Sgd(torch::Tensor parameters, torch::Tensor gradients, SgdOptions options);
  void step(double learning_rate, double gradient_scale = 1.0) override;
  NamedTensors state() const override { return {{"velocity", velocity_}}; }

 private:
  SgdOptions options_;
  torch::Tensor velocity_;
};

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
  bool decoupled = false;  // AdamW
};

// 8 bytes of state per element.
class Adam : public Optimizer {
 public:
  Adam(torch::Tensor parameters, torch::Tensor gradients, AdamOptions options);
  void step(double learning_rate, double gradient_scale = 1.0) override;
  NamedTensors state() const override { return {{"mean", mean_}, {"square", square_}}; }

 private:
  AdamOptions options_;
  torch::Tensor mean_, square_;
};

}  // namespace manyranks
