// What the lessons of this chapter share: a gpt and its text, and the dense run on one rank that they must equal.
#pragma once

#include "launch/torch.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"  // Communicator
#include "launch/process.hpp"     // Process, Options
#include "train/text_gpt.hpp"     // TextGpt

namespace manyranks {

// The gpt of this chapter: the shared one, and how long its lessons train it.
class Workload : public TextGpt {
 public:
  explicit Workload(Options& options) : TextGpt(options) {}

  bool counts_memory() const { return device.is_cpu(); }  // the allocator does not see a GPU's
  // For a check beside a model that is too large for one rank: the same heads and vocabulary, and little else.
  void use_small_shape();

  // Verified against the dense run, which rank 0 computes while the others wait: no more than this, however large
  // --steps is.
  int64_t steps() const { return std::min<int64_t>(20, options_.steps_or(20, 20)); }
  int64_t timed_steps() const { return options_.steps_or(20, 3); }
  int64_t batch_size() const { return options_.batch_or(options_.quick ? 4 : 8); }
  double learning_rate() const { return 1e-3; }                      // Adam
  TextBatch batch(int64_t step, int64_t first_sample = 0) const { return TextGpt::batch(step, first_sample, batch_size()); }
};

// A run: the loss of each step, and every parameter behind the last.
struct Curve {
  std::vector<double> losses;
  std::vector<torch::Tensor> parameters;
};

// Adam, fp32, one process: `shards` batches per step in turn, their gradients averaged. Rank 0 runs it, and everybody gets the
// result. Collective.
Curve train_dense(const Workload& workload, Communicator& world, int64_t steps, int64_t shards = 1);

// The losses of both agree to `tolerance` at every step, or exit 1 with the step. Returns the largest difference.
double expect_same_losses(const std::vector<double>& got, const std::vector<double>& dense, double tolerance = 1e-4);

// ||got - expected|| / ||expected|| over all tensors of two lists as one.
double relative_difference(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected);

// On the device whose tensors the communicator moves.
torch::Tensor for_exchange(const Communicator& world, const torch::Tensor& tensor);

// The largest of all ranks' numbers. Collective.
double largest_over(Communicator& world, double mine);

}  // namespace manyranks
