#include "report.hpp"

#include <malloc.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "comm/communicator.hpp"
#include "gantt.hpp"
#include "launch/errors.hpp"
#include "measure/provenance.hpp"  // write_row
#include "measure/statistics.hpp"  // median
#include "measure/table.hpp"
#include "measure/trace.hpp"
#include "measure/verify.hpp"  // expect_equal_bits

namespace manyranks::pipeline {

void keep_freed_memory() {
  // The largest values that glibc takes: blocks up to 32 MiB come from the heap, and the heap never shrinks.
  if (mallopt(M_MMAP_THRESHOLD, 32 << 20) != 1 || mallopt(M_TRIM_THRESHOLD, INT_MAX) != 1) throw unavailable_error("mallopt", "this C library does not take its thresholds");
}

std::map<const void*, torch::Tensor> Workload::serial_gradients(int64_t step) {
  for (torch::Tensor& parameter : model->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
  serial_step(*model, inputs, loss, seed, step);
  std::map<const void*, torch::Tensor> gradients;
  for (const torch::Tensor& parameter : model->parameters()) gradients[parameter.unsafeGetTensorImpl()] = parameter.grad().clone();
  model->zero_grad(/*set_to_none=*/false);
  return gradients;
}

std::vector<double> Workload::unit_sizes() const {
  std::vector<double> sizes;
  for (const auto& unit : model->units()) {
    sizes.push_back(0);
    for (const torch::Tensor& parameter : unit->parameters()) sizes.back() += static_cast<double>(parameter.numel());
  }
  return sizes;
}

std::unique_ptr<Workload> make_workload(std::shared_ptr<Model> model, int64_t batch, int microbatches, uint64_t seed, torch::Device device) {
  auto workload = std::make_unique<Workload>();
  model->to(device);
  workload->model = std::move(model);
  workload->seed = seed;
  for (int i = 0; i < microbatches; ++i) {
    workload->inputs.push_back(workload->model->example_input(batch).to(device));
    workload->targets.push_back(workload->model->example_target(batch).to(device));
  }
  workload->loss = [targets = workload->targets](const torch::Tensor& output, int microbatch) {
    return cross_entropy(output, targets[microbatch]) / static_cast<double>(targets.size());
  };
  return workload;
}

std::unique_ptr<Workload> make_mlp_workload(int64_t width, int64_t layers, int64_t batch, int microbatches, uint64_t seed, torch::Device device) {
  ModelShape shape;
  shape.image = 1;
  shape.channels = 32;
  shape.width = width;
  shape.layers = layers + 1;
  torch::manual_seed(seed);
  return make_workload(make_model("mlp", shape), batch, microbatches, seed, device);
}

void expect_serial(const std::vector<std::unique_ptr<UnitStage>>& stages, const std::map<const void*, torch::Tensor>& serial) {
  for (const auto& stage : stages)
    for (size_t i = 0; i < stage->parameters().size(); ++i)
      expect_equal_bits(fmt::format("gradient of parameter {} of this stage", i), stage->parameters()[i].grad(), serial.at(stage->parameters()[i].unsafeGetTensorImpl()));
}

void clear_gradients(const std::vector<std::unique_ptr<UnitStage>>& stages) {
  for (const auto& stage : stages)
    for (const torch::Tensor& parameter : stage->parameters()) parameter.grad().zero_();
}

std::vector<Stage*> pointers(const std::vector<std::unique_ptr<UnitStage>>& stages) {
  std::vector<Stage*> all;
  for (const auto& stage : stages) all.push_back(stage.get());
  return all;
}

static double median_length(const std::vector<std::vector<Span>>& timelines, Kind kind) {
  std::vector<double> lengths;
  for (const auto& spans : timelines)
    for (const Span& span : spans)
      if (span.action.kind == kind) lengths.push_back(span.end - span.start);
  return lengths.empty() ? 0 : median(lengths);
}

Measured gather_runs(Process& process, const std::vector<Run>& runs, int stages, int stride) {
  Measured measured;
  std::vector<std::vector<std::vector<Span>>> timelines;  // by run, by stage
  std::vector<double> bubbles, steps;
  for (const Run& run : runs) {
    timelines.emplace_back();
    const auto texts = process.rendezvous().all_gather(spans_to_text(run.spans));
    for (int stage = 0; stage < stages; ++stage) timelines.back().push_back(spans_from_text(texts[stage * stride]));
    bubbles.push_back(measured_bubble(timelines.back()));
    steps.push_back(measured_makespan(timelines.back()));
  }
  measured.bubble = median(bubbles);
  measured.step_s = median(steps);
  const auto nearest = std::min_element(bubbles.begin(), bubbles.end(), [&](double a, double b) { return std::abs(a - measured.bubble) < std::abs(b - measured.bubble); });
  measured.timeline = timelines[nearest - bubbles.begin()];

  for (size_t stage = 0; stage < measured.timeline.size(); ++stage) {
    std::vector<std::vector<Span>> mine;
    for (const auto& timeline : timelines) mine.push_back(timeline[stage]);
    const auto slower = [](int64_t& so_far, double seconds) { so_far = std::max(so_far, static_cast<int64_t>(seconds * 1e9)); };
    Costs costs{0, 0, 0};
    slower(costs.forward, median_length(mine, Kind::forward));
    slower(costs.input, median_length(mine, Kind::backward_input));
    slower(costs.weight, median_length(mine, Kind::backward_weight));
    if (const double whole = median_length(mine, Kind::backward); whole > 0) costs.input = costs.weight = static_cast<int64_t>(whole * 0.5e9);
    if (stage == 0 || costs.forward + costs.backward() > measured.costs_ns.forward + measured.costs_ns.backward()) measured.costs_ns = costs;
  }
  int64_t peak = 0, one = 0;
  for (const Run& run : runs) peak = std::max(peak, run.activation_bytes), one = std::max(one, run.first_activation_bytes);
  const auto texts = process.rendezvous().all_gather(fmt::format("{} {}", peak, one));
  for (int stage = 0; stage < stages; ++stage) {
    std::istringstream in(texts[stage * stride]);
    in >> peak >> one;
    measured.peak_bytes.push_back(peak);
    measured.one_bytes.push_back(one);
  }
  return measured;
}

// Both charts in one trace: the ideal one with the measured lengths of the slowest stage, and below it what happened.
static void write_timeline(Process& process, const Schedule& schedule, const Measured& measured, int stride) {
  if (process.options().trace.empty() || !process.is_root()) return;
  const Count ideal = count(schedule, measured.costs_ns);
  const auto name = [](const Action& action) {
    std::string kind = kind_name(action.kind);
    std::replace(kind.begin(), kind.end(), '_', ' ');
    return action.chunk == 0 ? fmt::format("{} {}", kind, action.microbatch) : fmt::format("{} c{} {}", kind, action.chunk, action.microbatch);
  };
  double zero = std::numeric_limits<double>::infinity();  // the first computation
  for (const auto& spans : measured.timeline)
    for (const Span& span : spans)
      if (is_compute(span.action.kind)) zero = std::min(zero, span.start);
  std::vector<std::string> parts;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    Trace trace(stage * stride, process.hosts()[process.places()[stage * stride].node]);
    for (const Span& span : ideal.timeline[stage]) trace.complete("ideal", name(span.action), zero + 1e-9 * span.start, zero + 1e-9 * span.end);
    for (const bool computed : {true, false})
      for (const Span& span : measured.timeline[stage])
        if (is_compute(span.action.kind) == computed) trace.complete(computed ? "measured" : "messages", name(span.action), std::max(zero, span.start), std::max(zero, span.end));
    parts.push_back(trace.to_json_events());
  }
  write_trace(process.options().trace, parts);
}

void report(Process& process, const Schedule& schedule, const std::vector<Run>& runs, const std::string& workload, int stride) {
  const Measured measured = gather_runs(process, runs, schedule.stages, stride);
  write_timeline(process, schedule, measured, stride);
  const Count ideal = count(schedule);
  // What the schedule would take with nothing but the slowest stage's computations.
  const double predicted_s = static_cast<double>(count(schedule, measured.costs_ns).makespan) * 1e-9;
  const double predicted_bubble = count(schedule, measured.costs_ns).bubble.value();
  Row row;
  row.set("variant", schedule.name).set("workload", workload).set("kind", "measured").set("iterations", static_cast<int64_t>(runs.size()));
  row.set("predicted", predicted_bubble).set("measured", measured.bubble).set("unit", fmt::format("bubble p={} m={} v={}", schedule.stages, schedule.microbatches, schedule.chunks));
  row.set("median_s", measured.step_s).set("peak_bytes", *std::max_element(measured.peak_bytes.begin(), measured.peak_bytes.end()));
  fill(row, process.world());
  write_row(process, row);
  if (!process.is_root()) return;

  const bool split = std::any_of(schedule.actions[0].begin(), schedule.actions[0].end(), [](const Action& a) { return a.kind == Kind::backward_weight; });
  fmt::print("ideal (F = 1, B = {}):\n{}", split ? "1, W = 1" : "2", draw_gantt(ideal.timeline, 1));
  fmt::print("measured:\n{}", draw_gantt(measured.timeline, measured_makespan(measured.timeline) / static_cast<double>(ideal.makespan)));
  if (process.oversubscribed())
    fmt::print("  more stages than cores: they take turns, so the measured chart shows the order, not the speed\n");
  Table table({"", "predicted", "measured"});
  table.add({"bubble", fmt::format("{:.1f}%", 100 * predicted_bubble), fmt::format("{:.1f}%", 100 * measured.bubble)});
  table.add({"step", format_seconds(predicted_s), format_seconds(measured.step_s)});
  for (int stage = 0; stage < schedule.stages; ++stage)
    if (measured.one_bytes[stage] > 0)
      table.add({fmt::format("stage {} holds", stage),
                 // Chunks differ in size, and a split backward keeps gradients for its weight part: there the number alone is predicted.
                 split || schedule.chunks > 1 ? fmt::format("{}", ideal.peak_live[stage])
                                              : fmt::format("{} of {}", ideal.peak_live[stage], format_bytes(measured.one_bytes[stage])),
                 format_bytes(measured.peak_bytes[stage])});
  fmt::print("{}", table.text(2));
}

}  // namespace manyranks::pipeline
