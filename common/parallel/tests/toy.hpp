// A model whose gradients no math library has a say in: elementwise products only, so that every bit is decided by the
// code under test.
#pragma once

#include "launch/torch.hpp"

#include <memory>
#include <string>
#include <vector>

#include "comm/tests/rank_main.hpp"   // world
#include "models/model.hpp"           // Model, Unit
#include "parallel/strategy.hpp"      // MakeOptimizer
#include "train/flat_parameters.hpp"  // FlatParameters

namespace manyranks::test {

// The same for the same key on every rank, whatever was drawn before.
inline torch::Tensor drawn(const std::vector<int64_t>& sizes, uint64_t key, torch::Dtype dtype = torch::kFloat) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(key), torch::TensorOptions(dtype));
}

// Whose samples a forward pass sees.
struct Sample {
  int64_t step = 0, rank = 0, pass = 0;
  uint64_t key(size_t parameter) const {
    return 1 + parameter + 16 * static_cast<uint64_t>(pass + 4 * (rank + 8 * step));
  }
};

// Adds sum(c p p) of each parameter p to its input, with c drawn for the sample: the gradient is 2 c p, times the
// frozen factor.
struct ToyUnit : Unit {
  ToyUnit(std::shared_ptr<Sample> current, size_t first_key, uint64_t seed,
          const std::vector<std::vector<int64_t>>& shapes)
      : sample(std::move(current)), first(first_key) {
    factor = register_parameter("factor", drawn({1}, seed + 99 * first_key), /*requires_grad=*/false);
    for (const auto& shape : shapes)
      weights.push_back(
          register_parameter("w" + std::to_string(weights.size()), drawn(shape, seed + first_key + weights.size())));
  }
  torch::Tensor forward(torch::Tensor x) override {
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto c = drawn(weights[i].sizes().vec(), sample->key(first + i));
      x = x + (weights[i] * weights[i] * c * factor).sum().view({1});
    }
    return x;
  }
  std::shared_ptr<Sample> sample;
  size_t first;
  torch::Tensor factor;
  std::vector<torch::Tensor> weights;
};

struct Toy : Model {
  explicit Toy(uint64_t seed) : Model("toy", {}), sample(std::make_shared<Sample>()) {
    // Odd sizes, so that shards need padding and parameters lie across buckets and chunks.
    register_module(
        "a", add_unit(std::make_shared<ToyUnit>(sample, 0, seed, std::vector<std::vector<int64_t>>{{7, 5}, {3}})));
    register_module("b", add_unit(std::make_shared<ToyUnit>(sample, 2, seed,
                                                            std::vector<std::vector<int64_t>>{{64}, {1}, {2, 3, 5}})));
    register_module("c", add_unit(std::make_shared<ToyUnit>(sample, 5, seed, std::vector<std::vector<int64_t>>{{11}})));
    count = register_buffer("count", torch::full({}, static_cast<int64_t>(seed), torch::kLong));
    flags = register_buffer("flags", drawn({9}, seed) > 0);
  }
  std::shared_ptr<Sample> sample;
  torch::Tensor count, flags;
};

inline std::vector<torch::Tensor> values_of(const Model& model) {
  std::vector<torch::Tensor> values;
  for (const auto& item : model.named_parameters()) values.push_back(item.value().detach().clone());
  return values;
}

// The same job by one process: every rank's gradients added in rank order, from rank 0's model.
inline std::vector<torch::Tensor> train_serially(const MakeOptimizer& make_optimizer, double rate, int64_t steps,
                                                 int64_t passes = 1) {
  Toy model(0);
  FlatParameters flat(model);
  const auto optimizer = make_optimizer(flat.parameters(), flat.gradients());
  const int ranks = world().size();
  for (int64_t step = 0; step < steps; ++step) {
    torch::Tensor sum;
    for (int rank = 0; rank < ranks; ++rank) {
      flat.zero_grad();
      for (int64_t pass = 0; pass < passes; ++pass) {
        *model.sample = {step, rank, pass};
        model.forward(torch::zeros({1})).sum().backward();
      }
      sum = rank == 0 ? flat.gradients().clone() : sum + flat.gradients();
    }
    flat.gradients().copy_(sum);
    optimizer->step(rate, 1.0 / static_cast<double>(ranks * passes));
  }
  return values_of(model);
}

}  // namespace manyranks::test
