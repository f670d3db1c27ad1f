// Gradients gathered in buckets while backward runs; each bucket is handed out as soon as it is full.
//
//   GradientBuckets buckets(world, *model, {}, [&](const auto& bucket) { return world.all_reduce_async(bucket.gradients); });
//   Adam optimizer(buckets.parameters(), buckets.gradients(), {});
//   loss.backward();            // hooks fill buckets and start their all-reduces, last layers first
//   buckets.finish();           // waits: now every gradient is the sum over all ranks
//   optimizer.step(learning_rate, 1.0 / world.size());
//   buckets.zero_grad();
//
// A hook behind each parameter copies its new gradient into the bucket (8 bytes of traffic per element; to accumulate in
// place would take 16: zero, read, read, write) and makes .grad() a view of it. Buckets lie in memory that peers can read.
#pragma once

#include "launch/torch.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"       // Communicator, Work
#include "parallel/gradient_hook.hpp"  // GradientHook
#include "parallel/replicate.hpp"      // NamedParameter

namespace manyranks {

struct BucketOptions {
  // A bucket is closed when it reaches its size. The first is small, so that communication starts early in backward; and so is the
  // last, because what becomes ready at the very end has nothing left to hide behind.
  int64_t first_bytes = 1 << 20, bytes = 25 << 20;
  bool rebuild = true;  // after the first step, in the order in which gradients came; false if optimiser state was loaded
};

class GradientBuckets {
 public:
  struct Bucket {
    size_t index;
    torch::Tensor gradients;  // (count), in memory from Communicator::allocate()
    bool last;                // nothing is left to compute: a blocking call saves the hand-over to another thread
  };
  using Start = std::function<Work(const Bucket&)>;

  // Replicates rank 0's model, moves all parameters into one flat buffer, and hooks in. `module` must stay where it is.
  // Collective.
  GradientBuckets(Communicator& world, torch::nn::Module& module, BucketOptions options, Start start);
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Flat, in the same order: for a fused optimiser. The order changes once, in the first finish(), before any optimiser
  // state differs from zero; the memory stays the same.
  const torch::Tensor& parameters() const { return parameters_; }
  const torch::Tensor& gradients() const { return gradients_; }

  void zero_grad();  // never the module's own
  // Hands out what is left, and waits. A parameter that got no gradient on this rank counts as zero: the ranks may
  // disagree about which are used, and a rank without samples need not run backward at all.
  void finish();

  // While one lives, gradients add up in the buckets and nothing is sent.
  class NoSync {
   public:
    explicit NoSync(GradientBuckets& buckets) : buckets_(buckets) { buckets_.synchronize_ = false; }
    ~NoSync() { buckets_.synchronize_ = true; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    GradientBuckets& buckets_;
  };

  size_t size() const { return buckets_.size(); }
  int64_t elements(size_t bucket) const { return buckets_[bucket].count; }
  std::vector<std::string> names_in_order() const;
  // The parts of a tensor in the order of the flat buffers (optimiser state), named, as rows.
  std::vector<std::pair<std::string, torch::Tensor>> by_parameter(const torch::Tensor& flat) const;

 private:
  struct Slot {
    NamedParameter parameter;
    std::unique_ptr<GradientHook> hook;
    int64_t begin = 0;
    size_t bucket = 0;
    torch::Tensor view;   // of gradients_, shaped as the parameter
    bool ready = false;
  };
  struct Range {
    int64_t begin = 0, count = 0;
    size_t parameters = 0, pending = 0;
  };
  void assign(const std::vector<size_t>& order);  // slots to buckets, in this order; moves values along
  void on_gradient(size_t index);
  void start_full_ones();
  void rebuild();

  Communicator& world_;
  BucketOptions options_;
  Start start_;
  torch::Tensor parameters_, gradients_;
  std::vector<Slot> slots_;       // in the order of registration
  std::vector<size_t> order_;     // slots in the order of the flat buffers
  std::vector<size_t> seen_;      // slots in the order in which gradients came, first step
  std::vector<Range> buckets_;
  std::vector<Work> works_;
  size_t next_bucket_ = 0;
  bool synchronize_ = true, rebuilt_ = false;
};

}  // namespace manyranks
