// The gpt of models/gpt.hpp, cut over the ranks of a communicator: heads, the MLP's hidden units and the vocabulary are split.
//
//   ParallelGpt model(shape, {tensor_ranks, Sequence::split}, {.seed = 1});
//   auto loss = model.loss(model.forward(tokens), target);      // tokens and target the same on all tensor ranks
//
// It is a Model with units(), so that ZeRO and pipeline stages cut it as they cut the dense one, and its parameters carry the same
// names; each is the rank's part of the dense parameter (part_of), from the same (seed, name).
#pragma once

#include "launch/torch.hpp"

#include <memory>
#include <vector>

#include "models/model.hpp"               // Model, ModelShape
#include "parallel/tensor_parallel.hpp"  // TensorSplit

namespace manyranks {

// What the random numbers of a run depend on, beside who they are for.
struct RandomKeys {
  uint64_t seed = 1;         // of parameters and dropout: the same on every rank
  int64_t step = 0;          // set before each forward pass, if there is dropout
  int64_t first_sample = 0;  // in the global batch: data rank * batch
  // Where this rank's heads and positions begin: tensor rank. Tests set it wrong on purpose.
  int64_t tensor_rank = -1;
};

// Units [begin, end) of the model, counted as gpt_units() does: a pipeline stage holds some of them.
struct UnitRange {
  int64_t begin = 0, end = -1;  // -1: to the last
};

class ParallelGpt : public Model {
 public:
  // Throws a usage error with the valid choices if the shape cannot be cut so. Initialises its parts; no communication.
  ParallelGpt(const ModelShape& shape, const TensorSplit& split, const RandomKeys& keys, UnitRange range = {});
  ParallelGpt(const ModelShape& shape, Communicator& tensor_ranks) : ParallelGpt(shape, TensorSplit{tensor_ranks}, RandomKeys{}) {}

  // logits: (N, T, vocab / n), from the last unit. The same value on every tensor rank.
  torch::Tensor loss(const torch::Tensor& logits, const torch::Tensor& target);
  const TensorSplit& split() const { return split_; }
  RandomKeys& keys() { return *keys_; }

  // All parameters as the dense model has them, in its order. Collective over the tensor ranks.
  std::vector<torch::Tensor> gather_whole() const;

 private:
  TensorSplit split_;
  std::shared_ptr<RandomKeys> keys_;
};

}  // namespace manyranks
