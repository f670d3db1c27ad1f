// Horovod's way: an optimiser that exchanges gradients behind the program's back, in whatever order they come.
//
//   DistributedOptimizer optimizer(world, flat, make_adam()(flat.parameters(), flat.gradients()), {});
//   loss.backward();                  // hooks tell a background thread which gradients are ready
//   optimizer.step(learning_rate);    // waits for the sums, then the wrapped optimiser's step
//   flat.zero_grad();
//
// A backward() too many would add this rank's gradient to a sum over all ranks: it throws exit 64.
//
// In each cycle the ranks agree which gradients are ready everywhere (the minimum of everybody's marks), and those go
// in one all-reduce, through a fusion buffer. There are no buckets to be full: ranks may make gradients in different
// orders.
#pragma once

#include "launch/torch.hpp"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/communicator.hpp"       // Communicator
#include "measure/trace.hpp"           // Trace
#include "parallel/gradient_hook.hpp"  // GradientHook
#include "train/flat_parameters.hpp"   // FlatParameters
#include "train/optimizer.hpp"         // Optimizer

namespace manyranks {

struct FusionOptions {
  double cycle_ms = 1;                 // how long gradients gather before the ranks meet; Horovod's default since 0.21
  int64_t fusion_bytes = 128 << 20;    // the largest all-reduce, as float32; likewise
  bool fp16 = false;                   // half the bytes, 11 bits of each gradient
  int backward_passes_per_step = 1;  // gradients of that many backward() add up on each rank before they are exchanged
};

class DistributedOptimizer {
 public:
  // Takes rank 0's parameters for all. Collective. `trace` may be null.
  DistributedOptimizer(Communicator& world, FlatParameters& flat, std::unique_ptr<Optimizer> inner, FusionOptions options, Trace* trace = nullptr);
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // After backward, or on a rank without samples in its place. Gradients are the sum over ranks; `gradient_scale` makes it a mean.
  void step(double learning_rate, double gradient_scale);

  Optimizer& inner() { return *inner_; }
  int64_t fused_calls() const { return fused_calls_; }
  Traffic traffic() const { return background_->traffic(); }  // the marks of each cycle included

 private:
  void announce(size_t index);
  void serve();
  bool pending() const;
  void cycle();
  size_t fuse(const std::vector<size_t>& agreed, size_t first);
  void exchange(const std::vector<torch::Tensor>& rows);

  std::unique_ptr<Communicator> background_;  // of its own: its calls must not mix with the program's
  FlatParameters& flat_;
  std::unique_ptr<Optimizer> inner_;
  FusionOptions options_;
  Trace* trace_;
  size_t count_;
  torch::Tensor buffer_;
  std::vector<std::unique_ptr<GradientHook>> hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> passes_;  // gradients of each parameter since the last step
  std::vector<bool> ready_, done_;
  bool waiting_ = false, stop_ = false;
  std::exception_ptr failure_;
  std::atomic<int64_t> fused_calls_{0};
  std::thread thread_;  // last: it uses all the others
};

}  // namespace manyranks
