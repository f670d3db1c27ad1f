#include "stage.hpp"

#include <unordered_map>

#include "launch/errors.hpp"
#include "measure/allocator.hpp"  // CountingAllocator, MemoryTag

namespace manyranks::pipeline {

void seed_unit(uint64_t seed, int64_t step, int microbatch, size_t unit) {
  // splitmix64 over the four numbers: neighbours get unrelated streams.
  uint64_t mixed = seed;
  for (uint64_t part : {static_cast<uint64_t>(step), static_cast<uint64_t>(microbatch), static_cast<uint64_t>(unit)}) {
    mixed += part + 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    mixed ^= mixed >> 31;
  }
  torch::manual_seed(mixed);
}

UnitStage::UnitStage(const Model& model, Setting setting, Loss loss) : setting_(setting), loss_(std::move(loss)) {
  std::unordered_map<const void*, size_t> index;
  for (size_t i = 0; i < setting.units; ++i) {
    units_.push_back(model.units().at(setting.first_unit + i));
    of_unit_.emplace_back();
    for (const torch::Tensor& parameter : units_.back()->parameters()) {
      const auto [place, is_new] = index.emplace(parameter.unsafeGetTensorImpl(), parameters_.size());
      if (is_new) parameters_.push_back(parameter);
      of_unit_.back().push_back(place->second);
    }
  }
  if (!parameters_.empty()) device_ = parameters_[0].device();
}

void UnitStage::begin_step(int64_t step) {
  step_ = step;
  next_microbatch_ = 0;
}

torch::Tensor UnitStage::run_unit(size_t unit, const torch::Tensor& input, int microbatch) const {
  seed_unit(setting_.seed, step_, microbatch, setting_.first_unit + unit);
  // Half copies of the weights live as long as the unit runs: a cast per microbatch, and nothing to hold until the step ends.
  const Autocast autocast(setting_.amp, device_.type());
  torch::Tensor output = units_[unit]->forward(input);
  return loss_ && unit + 1 == units_.size() ? loss_(output, microbatch) : output;
}

// Runs units [begin, end) with a graph. The input is cut off from what was before: its gradient is what goes back.
Tape UnitStage::record(size_t begin, size_t end, torch::Tensor input, int microbatch, torch::Tensor* output) const {
  input = input.detach();
  if (begin > 0 || !is_first()) input.requires_grad_(true);
  torch::Tensor x = input;
  for (size_t unit = begin; unit < end; ++unit) x = run_unit(unit, x, microbatch);
  std::vector<torch::Tensor> parameters;
  if (begin == 0 && end == units_.size()) parameters = parameters_;
  else
    for (size_t index : of_unit_[begin]) parameters.push_back(parameters_[index]);
  if (output) *output = x.detach();
  return Tape(input, x, std::move(parameters));
}

torch::Tensor UnitStage::forward(int microbatch, torch::Tensor input) {
  MemoryTag tag(Tag::activations, "forward");
  Held held;
  torch::Tensor output;
  if (setting_.recompute) {
    torch::NoGradGuard no_graph;
    output = input;
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      held.inputs.push_back(output);
      output = run_unit(unit, output, microbatch);
    }
  } else {
    held.tapes.push_back(record(0, units_.size(), input, microbatch, &output));
  }
  held_.emplace(microbatch, std::move(held));
  return output;
}

// Adds what a tape found to the sums of the stage. A parameter in two units of a stage gets the sum of both, as in one graph.
void UnitStage::collect(std::vector<torch::Tensor>& sums, size_t begin, const std::vector<torch::Tensor>& found) const {
  for (size_t i = 0; i < found.size(); ++i) {
    torch::Tensor& sum = sums[setting_.recompute ? of_unit_[begin][i] : i];
    if (found[i].defined()) sum = sum.defined() ? sum + found[i] : found[i];
  }
}

torch::Tensor UnitStage::walk_back(int microbatch, torch::Tensor gradient, bool whole) {
  MemoryTag tag(Tag::activations, "backward");
  Held& held = held_.at(microbatch);
  std::vector<torch::Tensor> sums(parameters_.size());
  if (!gradient.defined()) gradient = torch::ones({}, torch::TensorOptions().device(device_));  // of the loss
  std::vector<Tape> rest;
  const size_t tapes = setting_.recompute ? units_.size() : 1;
  for (size_t i = tapes; i-- > 0;) {
    Tape tape = setting_.recompute ? record(i, i + 1, held.inputs[i], microbatch, nullptr) : std::move(held.tapes[0]);
    if (setting_.recompute) held.inputs[i] = torch::Tensor();  // the tape has it now
    if (whole) {
      Tape::Gradients found = tape.backward(gradient);
      gradient = found.input;
      collect(sums, i, found.weights);
    } else {
      gradient = tape.backward_input(gradient);
      rest.push_back(std::move(tape));
    }
  }
  if (whole) {
    held_.erase(microbatch);
    accumulate(microbatch, std::move(sums));
  } else {
    held.tapes.assign(std::make_move_iterator(rest.rbegin()), std::make_move_iterator(rest.rend()));
  }
  return gradient;
}

torch::Tensor UnitStage::backward(int microbatch, torch::Tensor gradient) { return walk_back(microbatch, std::move(gradient), true); }
torch::Tensor UnitStage::backward_input(int microbatch, torch::Tensor gradient) { return walk_back(microbatch, std::move(gradient), false); }

void UnitStage::backward_weight(int microbatch) {
  std::vector<torch::Tensor> sums(parameters_.size());
  {
    MemoryTag tag(Tag::activations, "backward");
    Held& held = held_.at(microbatch);
    for (size_t i = 0; i < held.tapes.size(); ++i) collect(sums, i, held.tapes[i].backward_weight());
    held_.erase(microbatch);
  }
  accumulate(microbatch, std::move(sums));
}

// Float sums depend on their order. Gradients are added by microbatch, not as the schedule happens to finish them: that makes any
// schedule equal, bit by bit, to the serial run. The schedules of this chapter finish in order, so nothing waits.
void UnitStage::accumulate(int microbatch, std::vector<torch::Tensor> gradients) {
  MemoryTag tag(Tag::gradients, "weight gradients");
  torch::NoGradGuard no_graph;
  waiting_.emplace(microbatch, std::move(gradients));
  for (auto first = waiting_.find(next_microbatch_); first != waiting_.end(); first = waiting_.find(++next_microbatch_)) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      torch::Tensor& gradient = first->second[i];
      if (!gradient.defined()) continue;
      torch::Tensor& sum = parameters_[i].mutable_grad();
      const bool ours_alone = gradient.use_count() == 1 && gradient.storage().use_count() == 1 && gradient.strides() == parameters_[i].strides();
      if (sum.defined()) {
        sum.add_(gradient);
      } else if (ours_alone) {  // the first one is taken over, as autograd does: a copy would make the first microbatch slower than the others
        CountingAllocator::get().retag(gradient, Tag::gradients);
        sum = std::move(gradient);
      } else {
        sum = gradient.clone(at::MemoryFormat::Preserve);
      }
    }
    waiting_.erase(first);
  }
}

torch::Tensor UnitStage::shape_of_output(torch::Tensor input) {
  // Without gradients and in evaluation mode, so that batch normalisation does not count it.
  torch::NoGradGuard no_graph;
  const Autocast autocast(setting_.amp, device_.type());
  for (const auto& unit : units_) {
    const bool was_training = unit->is_training();
    unit->eval();
    input = unit->forward(input);
    unit->train(was_training);
  }
  return loss_ ? torch::zeros({}, input.options().dtype(torch::kFloat)) : input;
}

std::vector<std::unique_ptr<UnitStage>> cut_model(const Model& model, const std::vector<size_t>& units_per_part, int stage, int stages,
                                                  const UnitStage::Setting& setting, const UnitStage::Loss& loss) {
  std::vector<std::unique_ptr<UnitStage>> mine;
  std::unordered_map<const void*, size_t> part_of;  // every parameter must live in one part
  size_t first = 0;
  for (size_t g = 0; g < units_per_part.size(); first += units_per_part[g++]) {
    for (size_t i = first; i < first + units_per_part[g]; ++i)
      for (const auto& parameter : model.units().at(i)->named_parameters())
        if (const size_t other = part_of.emplace(parameter.value().unsafeGetTensorImpl(), g).first->second; other != g)
          throw usage_error("cutting the model", fmt::format("{} of unit {} is tied to a unit of part {}: its gradient would be half in each", parameter.key(), i, other),
                            "a model without tied weights, or a cut that keeps both in one part");
    if (static_cast<int>(g) % stages != stage) continue;
    UnitStage::Setting part = setting;
    part.first_unit = first;
    part.units = units_per_part[g];
    mine.push_back(std::make_unique<UnitStage>(model, part, g + 1 == units_per_part.size() ? loss : nullptr));
  }
  return mine;
}

double serial_step(Model& model, const std::vector<torch::Tensor>& inputs, const UnitStage::Loss& loss, uint64_t seed, int64_t step, const Amp& amp) {
  double sum = 0;
  for (size_t microbatch = 0; microbatch < inputs.size(); ++microbatch) {
    torch::Tensor x = inputs[microbatch];
    for (size_t unit = 0; unit < model.units().size(); ++unit) {
      seed_unit(seed, step, static_cast<int>(microbatch), unit);
      const Autocast autocast(amp, x.device().type());
      x = model.units()[unit]->forward(x);
    }
    const torch::Tensor value = loss(x, static_cast<int>(microbatch));
    value.backward();
    sum += value.item<double>();
  }
  return sum;
}

}  // namespace manyranks::pipeline
