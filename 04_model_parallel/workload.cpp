#include "workload.hpp"

#include <cmath>

#include "launch/errors.hpp"
#include "models/gpt.hpp"             // initialise_gpt
#include "parallel/replicate.hpp"     // trainable_parameters
#include "parallel/strategy.hpp"      // make_adam
#include "train/flat_parameters.hpp"  // FlatParameters

namespace manyranks {

Workload::Workload(Options& options) : options_(options) {
  shape = usual_shape("gpt");
  shape.heads = 12;  // shared by 1, 2, 3, 4, 6 or 12 ranks
  shape.width = 192;
  shape.vocab = 264;  // bytes, and as many more as make it divisible by 2, 3 and 4
  shape.context = 96;
  options.add("--width", shape.width, "embedding (C)").positive();
  options.add("--layers", shape.layers, "blocks").positive();
  options.add("--heads", shape.heads, "attention heads").positive();
  options.add("--vocab", shape.vocab, "tokens there are; bytes need 256, the grammar's text 128").positive();
  options.add("--context", shape.context, "sequence length (T)").positive();
}

void Workload::prepare(torch::Device where) {
  device = where;
  if (options_.quick) {
    if (!options_.given("--width")) shape.width = 48;
    if (!options_.given("--layers")) shape.layers = 2;
    if (!options_.given("--context")) shape.context = 24;
  }
  if (shape.width % shape.heads) throw usage_error("--width", fmt::format("{} is no multiple of {} heads", shape.width, shape.heads), fmt::format("--width {}", shape.width / shape.heads * shape.heads + shape.heads));
  text_ = options_.data.empty() ? grammar_text(options_.seed, 1 << 20) : file_text(options_.data);
  const int largest = text_.bytes.empty() ? 0 : *std::max_element(text_.bytes.begin(), text_.bytes.end());
  if (largest >= shape.vocab) throw usage_error("--vocab", fmt::format("the text has bytes up to {}", largest), fmt::format("--vocab {} or more", largest + 1));
}

void Workload::use_small_shape() {
  shape.layers = 2;
  shape.width = 4 * shape.heads;
  shape.context = std::min<int64_t>(shape.context, 2 * shape.heads);  // every number of ranks that divides the heads divides it too
}

std::shared_ptr<Model> Workload::dense() const {
  auto model = make_model("gpt", shape);
  initialise_gpt(*model, "", shape.layers, options_.seed);
  model->to(device);
  return model;
}

TextBatch Workload::batch(int64_t step, int64_t first_sample) const {
  auto rows = torch::empty({batch_size(), shape.context + 1}, torch::kLong);
  for (int64_t sample = 0; sample < batch_size(); ++sample) {
    const ByteView window = text_window(text_.bytes, options_.seed, static_cast<uint64_t>(step), static_cast<uint64_t>(first_sample + sample), static_cast<size_t>(shape.context) + 1);
    std::copy(window.begin(), window.end(), rows.data_ptr<int64_t>() + sample * (shape.context + 1));
  }
  return {rows.narrow(1, 0, shape.context).contiguous().to(device), rows.narrow(1, 1, shape.context).contiguous().to(device)};
}

Curve train_dense(const Workload& workload, Communicator& world, int64_t steps, int64_t shards) {
  Curve curve;
  curve.losses.assign(static_cast<size_t>(steps), 0.0);
  auto model = workload.dense();
  FlatParameters flat(*model);
  auto optimizer = make_adam()(flat.parameters(), flat.gradients());
  for (int64_t step = 0; world.rank() == 0 && step < steps; ++step) {
    flat.zero_grad();
    for (int64_t shard = 0; shard < shards; ++shard) {
      const auto [tokens, target] = workload.batch(step, shard * workload.batch_size());
      const auto loss = cross_entropy(model->forward(tokens), target);
      loss.backward();
      curve.losses[static_cast<size_t>(step)] += loss.item<double>() / static_cast<double>(shards);
    }
    optimizer->step(workload.learning_rate(), 1.0 / static_cast<double>(shards));
  }
  world.broadcast(flat.parameters(), 0);
  auto losses = for_exchange(world, torch::tensor(curve.losses, torch::kDouble));
  world.broadcast(losses, 0);
  losses = losses.to(torch::kCPU);
  std::copy_n(losses.data_ptr<double>(), steps, curve.losses.begin());
  for (const auto& [name, tensor] : trainable_parameters(*model)) curve.parameters.push_back(tensor.detach());
  return curve;
}

double expect_same_losses(const std::vector<double>& got, const std::vector<double>& dense, double tolerance) {
  double largest = 0;
  for (size_t step = 0; step < dense.size(); ++step) {
    const double difference = std::abs(got.at(step) - dense[step]);
    if (!(difference <= tolerance))
      throw verify_error("loss", fmt::format("step {}: {:.6f}, dense {:.6f}: they differ by {:.1e}, more than {:.0e}", step, got[step], dense[step], difference, tolerance));
    largest = std::max(largest, difference);
  }
  return largest;
}

double relative_difference(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (got.at(i).detach() - expected[i].detach()).to(torch::kDouble).square().sum().item<double>();
    size += expected[i].detach().to(torch::kDouble).square().sum().item<double>();
  }
  return std::sqrt(difference / size);
}

torch::Tensor for_exchange(const Communicator& world, const torch::Tensor& tensor) { return world.backend() == "nccl" ? tensor.to(torch::kCUDA) : tensor; }

double largest_over(Communicator& world, double mine) {
  auto value = for_exchange(world, torch::tensor({mine}, torch::kDouble));
  world.all_reduce(value, ReduceOp::max);
  return value.item<double>();
}

}  // namespace manyranks
