// What one virtual stage computes, microbatch by microbatch: the mathematics. The wire is the engine's (engine.hpp).
#pragma once

#include "launch/torch.hpp"

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "models/model.hpp"  // Unit
#include "tape.hpp"          // Tape
#include "train/amp.hpp"     // Amp

namespace manyranks::pipeline {

class Stage {
 public:
  virtual ~Stage() = default;
  // The output, cut off from its graph; on the last virtual stage the loss.
  virtual torch::Tensor forward(int microbatch, torch::Tensor input) = 0;
  // The gradient of the input, undefined on the first virtual stage. `output_gradient` is undefined on the last one.
  virtual torch::Tensor backward(int microbatch, torch::Tensor output_gradient) = 0;
  virtual torch::Tensor backward_input(int microbatch, torch::Tensor output_gradient) = 0;
  virtual void backward_weight(int microbatch) = 0;
  // What forward() would return for such an input, in shape and type: asked once, before the first step.
  virtual torch::Tensor shape_of_output(torch::Tensor input) = 0;
};

// Random numbers (dropout) by step, microbatch and unit: the same whatever the cut, the schedule or a repeated forward pass.
void seed_unit(uint64_t seed, int64_t step, int microbatch, size_t unit);

// Consecutive units of a model.
class UnitStage : public Stage {
 public:
  struct Setting {
    size_t first_unit = 0, units = 0;  // of model->units()
    uint64_t seed = 1;
    bool recompute = false;  // hold only the input of each unit, and run it again in the backward pass
    Amp amp = {};            // what travels between stages is then in half precision, too
  };
  // loss(output, microbatch): only on the last virtual stage.
  using Loss = std::function<torch::Tensor(const torch::Tensor& output, int microbatch)>;
  UnitStage(const Model& model, Setting setting, Loss loss = {});

  torch::Tensor forward(int microbatch, torch::Tensor input) override;
  torch::Tensor backward(int microbatch, torch::Tensor output_gradient) override;
  torch::Tensor backward_input(int microbatch, torch::Tensor output_gradient) override;
  void backward_weight(int microbatch) override;
  torch::Tensor shape_of_output(torch::Tensor input) override;

  void begin_step(int64_t step);  // gradients add up in microbatch order from here on, into each parameter's .grad
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  const std::vector<std::shared_ptr<Unit>>& units() const { return units_; }
  size_t first_unit() const { return setting_.first_unit; }  // of the model

 private:
  // What a microbatch holds between forward and backward: one tape for all units, or (recompute) the input of each unit.
  struct Held {
    std::vector<torch::Tensor> inputs;
    std::vector<Tape> tapes;
  };
  bool is_first() const { return setting_.first_unit == 0; }
  torch::Tensor run_unit(size_t unit, const torch::Tensor& input, int microbatch) const;
  Tape record(size_t begin, size_t end, torch::Tensor input, int microbatch, torch::Tensor* output) const;
  torch::Tensor walk_back(int microbatch, torch::Tensor gradient, bool whole);
  void collect(std::vector<torch::Tensor>& sums, size_t begin, const std::vector<torch::Tensor>& found) const;
  void accumulate(int microbatch, std::vector<torch::Tensor> gradients);

  std::vector<std::shared_ptr<Unit>> units_;
  Setting setting_;
  Loss loss_;
  torch::Device device_ = torch::kCPU;
  std::vector<torch::Tensor> parameters_;       // of all units, each once
  std::vector<std::vector<size_t>> of_unit_;    // indices into parameters_
  int64_t step_ = 0;
  int next_microbatch_ = 0;                                 // whose gradients are added next
  std::map<int, std::vector<torch::Tensor>> waiting_;       // those that came too early
  std::map<int, Held> held_;
};

// This rank's chunks of a model cut into virtual stages; units_per_part has one entry per virtual stage. A parameter that two parts
// share (tied weights) is a usage error.
std::vector<std::unique_ptr<UnitStage>> cut_model(const Model& model, const std::vector<size_t>& units_per_part, int stage, int stages,
                                                  const UnitStage::Setting& setting, const UnitStage::Loss& loss);

// The serial reference: the same microbatches in the same order through the whole model, by LibTorch's own backward(). Gradients
// add up in each parameter's .grad. Returns the sum of the losses.
double serial_step(Model& model, const std::vector<torch::Tensor>& inputs, const UnitStage::Loss& loss, uint64_t seed, int64_t step, const Amp& amp = {});

}  // namespace manyranks::pipeline
