// Gradients that nobody keeps whole. As backward makes them they are poured, in a fixed order, into two small buffers by
// turns; each full one is handed out to be reduce-scattered, and the gradient itself is freed at once. What a rank holds
// beside its shard is two chunks and the one gradient that is being poured.
//
//   flat order:  [ p5 | p4 |    p3     | p2 |p1| p0 |0]     a chunk ends where it ends, also inside a parameter
//   chunks:      [   0    |   1    |   2    |   3     ]     chunk c: [part of rank 0 | part of rank 1 | ...]
#pragma once

#include "launch/torch.hpp"

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"       // Work
#include "parallel/gradient_hook.hpp"  // GradientHook
#include "parallel/replicate.hpp"      // NamedParameter

namespace manyranks {

// How a row of parameters is cut for N ranks: chunks of equal size but for the last, each a multiple of N.
struct ChunkedRow {
  ChunkedRow(int64_t count, int64_t chunk_bytes, int ranks);
  int64_t padded() const { return padded_; }                      // elements of the row
  int64_t shard() const { return padded_ / ranks_; }              // elements that one rank owns
  size_t chunks() const { return padded_ ? static_cast<size_t>((padded_ + chunk_ - 1) / chunk_) : 0; }
  int64_t begin(size_t chunk) const { return static_cast<int64_t>(chunk) * chunk_; }                      // in the row
  int64_t size(size_t chunk) const { return std::min(chunk_, padded_ - begin(chunk)); }
  int64_t shard_begin(size_t chunk) const { return begin(chunk) / ranks_; }                               // in a shard
  int64_t shard_size(size_t chunk) const { return size(chunk) / ranks_; }

 private:
  int64_t padded_, chunk_;
  int ranks_;
};

// The buffers that streams fill by turns: two small ones, or as many as there are chunks where gradients are kept.
class ChunkBuffers {
 public:
  explicit ChunkBuffers(std::vector<torch::Tensor> buffers);  // in memory from Communicator::allocate()
  torch::Tensor next();                                       // once what was started from it is done
  void started(Work work) { works_[current_] = std::move(work); }
  void wait_all();

 private:
  std::vector<torch::Tensor> buffers_;
  std::vector<Work> works_;
  size_t current_;
};

class GradientStream {
 public:
  using Start = std::function<Work(size_t chunk, torch::Tensor gradients)>;  // gradients: (row.size(chunk))

  // `parameters` in the order of the row. Gradients that come early wait for their turn, so that all ranks make the same
  // calls in the same order.
  GradientStream(std::vector<NamedParameter> parameters, ChunkedRow row, ChunkBuffers& buffers, Start start);
  GradientStream(const GradientStream&) = delete;
  GradientStream& operator=(const GradientStream&) = delete;

  // Pours what is left, zeros for parameters that got no gradient, and hands out the last chunk. Does not wait.
  void finish();

 private:
  void on_gradient(size_t index);
  void pour(size_t index);
  void pour(const torch::Tensor& row_or_nothing, int64_t count);

  std::vector<NamedParameter> parameters_;
  ChunkedRow row_;
  ChunkBuffers& buffers_;
  Start start_;
  std::vector<std::unique_ptr<GradientHook>> hooks_;
  std::vector<bool> ready_;
  size_t next_ = 0, chunk_ = 0;  // parameter to pour, chunk being filled
  int64_t filled_ = 0;
  torch::Tensor buffer_;
};

}  // namespace manyranks
