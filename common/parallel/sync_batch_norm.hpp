// Batch normalisation over the samples of all ranks: without it 8 ranks with 4 samples each normalise by the statistics of 4.
//
//   const SyncBatchNorm synchronised(world, *model);    // for as long as it lives
//
// Each layer costs an all-reduce of 2C + 1 numbers in forward and another in backward: two meetings of all ranks per layer, so
// it pays where batches per rank are small, and nowhere else. Every rank must run forward and backward in every step, also
// one that has no samples (with a batch of none): Strategy::follow() would leave the others waiting.
#pragma once

#include <memory>

namespace torch::nn {
class Module;
}

namespace manyranks {

class Communicator;

class SyncBatchNorm {
 public:
  SyncBatchNorm(Communicator& world, torch::nn::Module& module);  // collective
  ~SyncBatchNorm();
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;

  int layers() const { return layers_; }

 private:
  torch::nn::Module& module_;
  std::unique_ptr<Communicator> among_layers_;  // of its own: buckets in flight must neither delay nor reorder it
  int layers_ = 0;
};

}  // namespace manyranks
