// What the lessons of this chapter share: a workload, its check against the serial run, and the report with its Gantt charts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine.hpp"           // Engine, Run
#include "launch/process.hpp"   // Process
#include "measure/timer.hpp"    // Timing
#include "stage.hpp"            // UnitStage

namespace manyranks::pipeline {

// A step asks for the same blocks as the step before. Keep them, as a GPU's caching allocator does: pages that went back to the kernel cost
// a fault each (4 KiB) when they are touched again, at random moments, and made backward passes of one stage differ by 20%.
void keep_freed_memory();

// A model and one global batch, in microbatches; the same on every rank, from the seed.
struct Workload {
  std::shared_ptr<Model> model;
  std::vector<torch::Tensor> inputs, targets;  // by microbatch
  uint64_t seed = 1;
  UnitStage::Loss loss;                        // mean over the global batch: each microbatch's mean, over m

  // The gradients of the serial run, by parameter. Leaves every .grad there, and zero: both runs add to the same zeros.
  std::map<const void*, torch::Tensor> serial_gradients(int64_t step = 0);
  // Cost of each unit, where nothing is measured: its parameters (a linear layer's products are proportional to them).
  std::vector<double> unit_sizes() const;
};

std::unique_ptr<Workload> make_workload(std::shared_ptr<Model> model, int64_t batch, int microbatches, uint64_t seed, torch::Device device);
// An mlp of equal layers (width x width), so that stages balance. Before them a thin one: the first layer of a model has no gradient
// of its input to compute, and a first stage that does an eighth less than the others would look like a larger bubble.
std::unique_ptr<Workload> make_mlp_workload(int64_t width, int64_t layers, int64_t batch, int microbatches, uint64_t seed, torch::Device device);

// Each gradient of this rank's stages equals the serial one, bit by bit; otherwise exit 1.
void expect_serial(const std::vector<std::unique_ptr<UnitStage>>& stages, const std::map<const void*, torch::Tensor>& serial);
void clear_gradients(const std::vector<std::unique_ptr<UnitStage>>& stages);
std::vector<Stage*> pointers(const std::vector<std::unique_ptr<UnitStage>>& stages);

// The timed runs of a schedule, seen from all ranks.
struct Measured {
  std::vector<std::vector<Span>> timeline;  // of the run whose bubble is the median
  double bubble = 0;                        // median over runs
  double step_s = 0;                        // median
  Costs costs_ns;                           // of the slowest stage, per action, median
  std::vector<int64_t> peak_bytes, one_bytes;  // by stage: most that was held, and what one microbatch holds
};
// Brings the runs of one pipeline (ranks 0, stride, 2 stride, ...) together, on every rank. Collective.
Measured gather_runs(Process& process, const std::vector<Run>& runs, int stages, int stride = 1);

// Prints the ideal chart, the measured one, and predicted beside measured (rank 0); writes --csv, and --trace with both charts.
// Collective.
void report(Process& process, const Schedule& schedule, const std::vector<Run>& runs, const std::string& workload, int stride = 1);

}  // namespace manyranks::pipeline
