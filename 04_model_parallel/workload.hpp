// What the lessons of this chapter share: a gpt and its text, and the dense run on one rank that they must equal.
#pragma once

#include "launch/torch.hpp"

#include <memory>
#include <vector>

#include "comm/communicator.hpp"  // Communicator
#include "data/text.hpp"          // Text
#include "launch/process.hpp"     // Process, Options
#include "models/model.hpp"       // Model, ModelShape

namespace manyranks {

struct TextBatch {
  torch::Tensor tokens, target;  // (N, T), int64: the target is the text one byte further on
};

class Workload {
 public:
  explicit Workload(Options& options);  // adds --width, --layers, --heads, --vocab, --context

  ModelShape shape;  // --quick makes it smaller where no flag sets it: see prepare()
  torch::Device device = torch::kCPU;  // of models and batches
  // After the flags were parsed: the shape as it will be, the text (--data FILE, or the grammar's), and process.device().
  void prepare(torch::Device where = torch::kCPU);
  bool counts_memory() const { return device.is_cpu(); }  // the allocator does not see a GPU's
  // For a check beside a model that is too large for one rank: the same heads and vocabulary, and little else.
  void use_small_shape();

  int64_t steps() const { return options_.steps_or(20, 20); }        // verified
  int64_t timed_steps() const { return options_.steps_or(20, 3); }   // timed
  int64_t batch_size() const { return options_.batch_or(options_.quick ? 4 : 8); }
  double learning_rate() const { return 1e-3; }                      // Adam
  uint64_t seed() const { return options_.seed; }
  const Text& text() const { return text_; }

  std::shared_ptr<Model> dense() const;                       // the same weights on every rank and every call
  TextBatch batch(int64_t step, int64_t first_sample = 0) const;  // batch_size() samples of the step's global batch

 private:
  const Options& options_;
  Text text_;
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
