// ZeRO-3: a rank holds 1/N of parameters, gradients and state. A unit's parameters are gathered just before they are
// needed and freed just after, in forward and again in backward; the next unit is on its way meanwhile.
//
//   forward    gather 0 | gather 1, compute 0, free 0 | gather 2, compute 1, free 1 | ...
//   backward   gather n | gather n-1, compute n, scatter gradients of n, free n     | ...
//
// C++ modules have no hooks: forward goes through the model's units, and backward finds its way by hooks on their outputs.
// Freeing works on the storage that all views of a unit's parameters share, so that what autograd saved stays valid, and
// finds the same bits when the unit is back.
#pragma once

#include "launch/torch.hpp"

#include <memory>
#include <vector>

#include "models/model.hpp"   // Model
#include "parallel/zero.hpp"  // MakeOptimizer, GradientStream

namespace manyranks {

class FullySharded {
 public:
  // `bucket_bytes` is what the two buffers for gradients hold together. Collective. A parameter that two units share is
  // refused: it would have to stay gathered all the time.
  FullySharded(Communicator& world, Model& model, int64_t bucket_bytes, const MakeOptimizer& make_optimizer);
  ~FullySharded();
  FullySharded(const FullySharded&) = delete;
  FullySharded& operator=(const FullySharded&) = delete;

  torch::Tensor forward(torch::Tensor x);
  // In place of forward and backward on a rank that has no samples left: peers still need its shards.
  void follow();
  // After backward: waits for the sums of my shard, and updates it.
  void step(double learning_rate, double gradient_scale);

  // Every parameter's value, copied, in the order of trainable_parameters(model). Collective.
  std::vector<torch::Tensor> gather_all();

  Optimizer& optimizer() { return *optimizer_; }
  const torch::Tensor& parameter_shard() const { return parameters_; }

  // What may be gathered at one time: a unit and its neighbour.
  int64_t two_largest_neighbours_bytes() const;

 private:
  struct Sharded;
  void gather(size_t unit);          // starts, unless it is there or on its way
  void need(size_t unit);            // waits until it is there
  void free(size_t unit);
  void enter_backward(size_t unit);  // the gradient of its output is there, so those of the unit behind it are complete
  void close(size_t unit);           // sends the rest of its gradients, frees it

  Communicator& world_;
  Model& model_;
  std::vector<std::unique_ptr<Sharded>> units_;
  torch::Tensor parameters_, gradients_;  // (sum of shards): mine
  std::unique_ptr<ChunkBuffers> buffers_;
  std::unique_ptr<Optimizer> optimizer_;
  size_t entered_;  // backward has come down to this unit
};

}  // namespace manyranks
