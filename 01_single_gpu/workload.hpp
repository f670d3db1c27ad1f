// What the lessons of this chapter share: images to train on, the plain loop that every rung must equal, and a fair stopwatch.
#pragma once

#include "launch/torch.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/torch_loader.hpp"    // TorchLoader, TensorBatch
#include "launch/process.hpp"       // Process, Options
#include "measure/monitor.hpp"      // DeviceMonitor
#include "measure/tensorboard.hpp"  // EventWriter
#include "measure/timer.hpp"        // Timing
#include "models/model.hpp"         // Model

namespace manyranks {

// Batches without end: epoch after epoch, each in its own order. Only full ones, so that every step has one shape.
class Batches {
 public:
  Batches(std::shared_ptr<const Dataset> data, const LoaderOptions& options, std::uint64_t seed);

  TensorBatch next();                            // valid until the next call
  void pause();                                  // stops the workers; next() goes on with a new epoch
  double waited_s() const { return waited_s_; }  // spent inside next(), so far

 private:
  std::shared_ptr<const Dataset> data_;
  LoaderOptions options_;
  DistributedSampler sampler_;
  std::optional<TorchLoader> loader_;
  std::int64_t epoch_ = 0;
  double waited_s_ = 0;
};

class Workload {
 public:
  explicit Workload(Options& options);  // adds --model, --image, --monitor, --tensorboard
  void open(Process& process);          // after process.start(): opens the data, starts the monitor
  void close();                         // the monitor's summary, and its file

  std::string kind = "convnet";
  double learning_rate() const { return 1e-3; }
  std::int64_t batch() const { return options_.batch_or(options_.quick ? 4 : 16); }
  // At its start a residual net with batch norm magnifies rounding: float32 gradients of resnet18 are 1e-3 off float64's, whatever the
  // layout, and two runs that differ in a last bit part within a few steps. So fewer steps are compared, and less closely.
  bool is_sensitive() const { return kind.starts_with("resnet"); }
  // Verified against the plain run: no more than this, however large --steps is.
  std::int64_t steps() const {
    const std::int64_t most = is_sensitive() ? 2 : 6;
    return std::min(most, options_.steps_or(most, is_sensitive() ? 2 : 3));
  }
  std::int64_t blocks() const { return options_.quick ? 2 : 7; }             // timed; see by_turns()
  std::int64_t samples_per_block() const { return options_.quick ? 8 : 512; }

  std::shared_ptr<Model> make() const;                                     // the same weights on every call; on the device
  LoaderOptions loading() const;                                           // the plain way: no workers, planes of colour (NCHW)
  Batches batches(const LoaderOptions& loading) const;                     // the same batches on every call
  Batches batches() const { return batches(loading()); }
  torch::Device device() const { return process_->device(); }
  const Dataset& data() const { return *data_; }
  std::string name() const { return kind + " on " + data_->name(); }           // in the rows that it writes
  void log(const std::string& tag, double value, std::int64_t step);       // to --tensorboard

 private:
  Options& options_;
  Process* process_ = nullptr;
  int image_ = 32;
  std::string monitor_file_, tensorboard_;
  std::shared_ptr<const Dataset> data_;
  std::unique_ptr<DeviceMonitor> monitor_;
  std::unique_ptr<EventWriter> events_;
};

// What a few steps of training did, for comparison.
struct Training {
  std::vector<double> losses;
  torch::Tensor gradient;  // of the first step, all parameters as one row; double
  void add(double loss, const Model& model);  // after each step
};

// The loop of 01_baseline, run for its results: what every later lesson must still compute.
struct Reference {
  Training training;
  torch::Tensor before, updates;  // all parameters as one row, and what training added to them; double
};
Reference train_plainly(const Workload& workload, std::int64_t steps, std::int64_t batch = 0);

// How far another run of the same steps is from the reference, norm-relative. Where sums are made in another order, the gradient of
// the first step is what tells: Adam turns a rounding error in a tiny gradient into a whole step, so updates agree less well, and
// losses say little, being nearly the same after steps that taught nothing.
struct Difference {
  double losses = 0, gradient = 0, updates = 0;
};
// Exit 1 if a limit is exceeded; limits of 0 ask for the same bits.
Difference expect_same_training(const std::string& name, const Training& training, const Model& model, const Reference& reference, Difference limit);

struct Variant {
  std::string name;
  Batches* batches = nullptr;
  std::int64_t batch = 0;
  std::function<void()> step;
};

struct Speed {
  Timing step;                // seconds per step: median and p95 over blocks
  double samples_per_s = 0;   // from the median
  double data_share = 0;      // of the time, spent waiting for the next batch
  double busy = 0;            // of the GPU (NVML); without one, of the cores that this process may use
};

// Blocks of steps, variant after variant, round after round, so that all meet the same machine; workers stand still while
// another variant has its turn. A block is `samples` long for every batch size. The device's queue is drained only at the
// ends of a block: a clock inside would serialise what a GPU overlaps.
std::vector<Speed> by_turns(Process& process, const std::vector<Variant>& variants, std::int64_t blocks, std::int64_t samples);

// A table on the screen, gains over the first row; a row each in --csv.
void report(Process& process, const Workload& workload, const std::vector<Variant>& variants, const std::vector<Speed>& speeds);
void write_speed(Process& process, const Workload& workload, const std::string& variant, std::int64_t batch, const Speed& speed, const std::string& dtype = "float32");

}  // namespace manyranks
