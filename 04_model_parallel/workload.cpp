#include "workload.hpp"

#include <cmath>

#include "launch/errors.hpp"
#include "parallel/replicate.hpp"     // trainable_parameters
#include "parallel/strategy.hpp"      // make_adam
#include "train/flat_parameters.hpp"  // FlatParameters

namespace manyranks {

void Workload::use_small_shape() {
  shape.layers = 2;
  shape.width = 4 * shape.heads;
  shape.context = std::min<int64_t>(shape.context, 2 * shape.heads);  // every number of ranks that divides the heads divides it too
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
