// ZeRO: what data parallelism holds N times, held once, in N shards. Bytes per parameter and rank with fp32 Adam:
//
//               parameters  gradients  state        sent per step, of P parameters
//   DDP         4           4          8            all-reduce 2P(N-1)/N
//   stage 1     4           4          8/N          reduce-scatter P(N-1)/N + all-gather P(N-1)/N
//   stage 2     4           4/N        8/N          the same, and gradients are gone as soon as they are sent
//   stage 3     4/N         4/N        8/N          one more all-gather, for backward
//
// Every element is updated by one rank, with the same arithmetic: the same bits as DDP.
#pragma once

#include "launch/torch.hpp"

#include <functional>
#include <memory>
#include <vector>

#include "parallel/gradient_stream.hpp"  // GradientStream, ChunkBuffers, ChunkedRow
#include "train/optimizer.hpp"           // Optimizer

namespace manyranks {

// Makes the optimiser of a range of parameters; its state is as large as the range.
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(torch::Tensor parameters, torch::Tensor gradients)>;

// Stages 1 and 2: whole parameters on every rank.
class ZeroSharded {
 public:
  // `bucket_bytes` is what the two chunk buffers hold together. Collective.
  ZeroSharded(Communicator& world, torch::nn::Module& module, int stage, int64_t bucket_bytes, const MakeOptimizer& make_optimizer);
  ZeroSharded(const ZeroSharded&) = delete;
  ZeroSharded& operator=(const ZeroSharded&) = delete;

  // After backward: waits for the sums of my shard, updates it, and collects the shards of the others.
  void step(double learning_rate, double gradient_scale);

  const ChunkedRow& row() const { return row_; }
  std::vector<Optimizer*> optimizers() const;

 private:
  Communicator& world_;
  std::vector<NamedParameter> in_order_;  // last layers first, as backward makes their gradients
  ChunkedRow row_;
  torch::Tensor parameters_;              // (row.padded()), peers read my shard of it
  torch::Tensor gradients_;               // stage 1: (row.padded()), my shard of each chunk becomes the sum; stage 2: (row.shard())
  std::unique_ptr<ChunkBuffers> buffers_;
  std::unique_ptr<GradientStream> stream_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;  // one per chunk
};

}  // namespace manyranks
