// What the lessons of this chapter share: a model to train, the serial run that they must equal, and the report.
#pragma once

#include "launch/torch.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"  // Communicator
#include "launch/process.hpp"     // Process, Options
#include "measure/comparison.hpp" // Comparison
#include "measure/csv.hpp"        // Row
#include "measure/timer.hpp"      // Timing
#include "models/model.hpp"       // Model
#include "parallel/zero.hpp"      // MakeOptimizer

namespace manyranks {

struct Samples {
  torch::Tensor x, y;
};

class Dataset;
Samples load_digits(const Dataset& dataset);  // all of it: (size, 1, 28, 28) in [-0.5, 0.5], and labels

// Samples are random: these lessons are about bits, bytes and seconds. 10_large_batch and 11_train learn something real.
class Workload {
 public:
  explicit Workload(Options& options);  // adds --model and --optimizer

  std::string kind = "convnet", optimizer = "adam";
  torch::Device device = torch::kCPU;  // of model and samples: workload.device = process.device(), after start()
  double learning_rate() const { return optimizer == "adam" ? 1e-3 : 0.01; }

  // Verified against the serial run, which rank 0 computes while the others wait: no more than this, however large
  // --steps is.
  int64_t steps() const {
    const int64_t most = is_large() ? 3 : 20;
    return std::min(most, options_.steps_or(most, is_large() ? 2 : 5));
  }
  int64_t timed_steps() const { return options_.steps_or(is_large() ? 10 : 30, 3); }
  bool is_large() const { return kind.starts_with("resnet") || kind == "vgg11"; }  // seconds per step on one core
  int64_t batch_size() const { return options_.batch_or(options_.quick ? 4 : 32); }

  ModelShape shape() const;
  std::shared_ptr<Model> make() const;                                    // the same weights on every rank and every call
  Samples samples(int64_t step, int rank, int64_t microbatch = 0) const;  // this rank's part of the step's batch
  MakeOptimizer optimizer_maker() const;

 private:
  const Options& options_;
};

struct Reference {
  std::vector<torch::Tensor> parameters;  // after the last step, in the order of trainable_parameters()
  std::vector<torch::Tensor> gradients;   // of the last step, summed over shards
  double loss = 0;                        // of the last step, mean over shards
};

// The job as one process would do it: every rank's samples in turn, gradients added in rank order, one optimiser step.
// Rank 0 runs it, and everybody gets the result. Collective.
Reference train_serially(const Workload& workload, Communicator& world, int64_t steps, int64_t microbatches = 1);

// Are sums made in rank order, as train_serially makes them? On one host they are, and two terms have only one order; a ring or two
// levels between hosts add in another, and float sums then differ in their last bits.
bool sums_in_rank_order(const Communicator& world);

// The same bits, or nearly: norm-relative `tolerance`. Returns the words for the report ("equal the serial run's, bit by bit,"), or
// ends the job with exit 1.
constexpr double reordered_tolerance = 1e-4;  // after 20 steps; 20 steps of Adam made 2e-6 of a last bit
std::string expect_same(bool bits, const std::string& name, const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected,
                        double tolerance = reordered_tolerance);

// Every parameter, and if it still has them whole, the gradients (up to the sign of zero: 0 + (-0) is 0 where gradients were added
// to a cleared buffer). Says so on rank 0, or ends the job with exit 1.
void verify_model(Process& process, const Model& model, const Reference& reference, int64_t steps);

// A step with and without communication, by turns, so that both meet the same machine. Exposed communication is the
// difference, never the wait after backward: a communication thread that takes the CPU from backward hides nothing.
struct Exposed {
  Timing with, without;
  double seconds = 0;  // median over pairs
};
Exposed time_exposed(Communicator& world, int64_t pairs, const std::function<void(bool communicate)>& step);

// Elements per rank times 4, for an all-reduce of `elements` floats over n ranks: 2(n-1)/n. Half of it for a reduce-scatter
// or an all-gather of that many in total.
double all_reduce_bytes(int64_t elements, int ranks);

// Prints the line about time, and writes the CSV row.
void report_step(Process& process, const Workload& workload, const std::string& variant, const Exposed& exposed, double predicted_bytes, double measured_bytes);

}  // namespace manyranks
