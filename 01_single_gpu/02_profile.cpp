// Where the time goes, and how far from the machine's limits it goes there.
//
// You learn   to measure before you change anything: the parts of a step on a clock, as NVTX ranges (nsys) and as a trace
//             (ui.perfetto.dev); the roofline: work needs max(flops / peak, bytes / bandwidth) at least, so arithmetic intensity
//             (flops per byte) says which of the two limits it; and MFU, the share of the peak that a training step reaches.
// Run it      build/01_single_gpu/02_profile --trace step.json
//             build/01_single_gpu/02_profile --model resnet18 --spec-gflops 19500     (the data sheet's figure for your device)
//             nsys profile build/01_single_gpu/02_profile --model resnet50 --image 224 --batch 128
// You see     the parts of a step; both peaks, measured here; for every unit of the model the time that the roofline allows
//             beside the time it takes; MFU.
// Read next   03_data_loader.cpp: what to do about the first row
#include "workload.hpp"  // Workload, Batches, train_plainly, expect_same_training

#include <torch/optim/adam.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "measure/provenance.hpp"  // write_row
#include "measure/statistics.hpp"  // median
#include "measure/table.hpp"       // Table, format_bytes, format_seconds
#include "measure/trace.hpp"       // Trace
#include "models/flops.hpp"        // count_flops, train_flops_per_sample, mfu
#include "parallel/replicate.hpp"  // check_finite

#if defined(MANYRANKS_HAVE_CUDA)
#include <nvtx3/nvToolsExt.h>  // headers only: does nothing unless a profiler is attached
#endif

using namespace manyranks;

namespace {

// A part of the step, from here to the end of the scope, on all three records. Waits for the GPU at both ends: the parts add
// up to the step, which is then slower than one that may run ahead. A profile shows where, not how fast.
class Part {
 public:
  Part(Trace& trace, std::map<std::string, std::vector<double>>& seconds, const char* name) : seconds_(seconds[name]), span_(trace.span("step", name)) {
#if defined(MANYRANKS_HAVE_CUDA)
    nvtxRangePushA(name);
#endif
  }
  ~Part() {
    finish_device_work();
    seconds_.push_back(timer_.seconds());
#if defined(MANYRANKS_HAVE_CUDA)
    nvtxRangePop();
#endif
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

 private:
  std::vector<double>& seconds_;
  Trace::Span span_;
  WallTimer timer_;
};

size_t median_at(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  return order[order.size() / 2];
}

double median_seconds(int repeats, const std::function<void()>& work) {
  work();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    finish_device_work();
    const WallTimer timer;
    work();
    finish_device_work();
    seconds.push_back(timer.seconds());
  }
  return median(seconds);
}

struct Peaks {
  double flops_per_s = 0, bytes_per_s = 0;
};

// What this device reaches on the two things that it does best: a large matrix product, and a copy larger than its caches.
Peaks measure_peaks(torch::Device device, bool quick) {
  const int64_t n = quick ? 256 : device.is_cuda() ? 8192 : 1024, bytes = (quick ? 8LL : device.is_cuda() ? 1024LL : 256LL) << 20;
  const auto a = torch::randn({n, n}, device), b = torch::randn({n, n}, device), from = torch::zeros({bytes / 4}, device);
  auto c = torch::empty({n, n}, device), to = torch::zeros({bytes / 4}, device);
  const double product = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  const double product_s = median_seconds(quick ? 3 : 15, [&] { torch::mm_out(c, a, b); });
  const double copy_s = median_seconds(quick ? 3 : 15, [&] { to.copy_(from); });
  return {product / product_s, 2.0 * static_cast<double>(bytes) / copy_s};  // a copy reads and writes
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("01_single_gpu/02_profile", "the parts of a step, the roofline, and MFU");
    Workload workload(options);
    double spec_gflops = 0;
    options.add("--spec-gflops", spec_gflops, "peak GFLOP/s by the data sheet, for MFU against it; 0: not known");
    process.start(options);
    workload.open(process);

    // 2. Reference: the plain loop.
    const Reference reference = train_plainly(workload, workload.steps());

    // 3. The loop of 01_baseline, its parts on a clock.
    Batches batches = workload.batches();
    auto model = workload.make();
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(workload.learning_rate()));
    Trace trace(process.rank(), process.host());
    std::map<std::string, std::vector<double>> seconds;
    const auto part = [&](const char* name) { return Part(trace, seconds, name); };
    const auto step = [&](int64_t number) {
      process.set_step(number);
      const Part whole(trace, seconds, "step");
      TensorBatch batch;
      torch::Tensor x, y, loss;
      { const auto p = part("data"); batch = batches.next(); }
      { const auto p = part("copy"); x = batch.images.to(workload.device()), y = batch.labels.to(workload.device()); }
      { const auto p = part("forward"); loss = cross_entropy(model->forward(x), y); }
      check_finite(loss);
      { const auto p = part("backward"); optimizer.zero_grad(), loss.backward(); }
      { const auto p = part("optimiser"); optimizer.step(); }
      return loss.item<double>();
    };

    // 4. Run, then verify: looking must not change what is seen.
    Training training;
    for (int64_t i = 0; i < workload.steps(); ++i) training.add(step(i), *model);
    expect_same_training("the profiled run", training, *model, reference, {});
    fmt::print("  {} steps, the same bits as without the clocks\n", workload.steps());
    if (options.verify_only) return;

    // 5. Where the time goes.
    seconds.clear();
    for (int64_t i = 0; i < (options.quick ? 3 : 30); ++i) step(workload.steps() + i);
    const size_t middle = median_at(seconds["step"]);  // the parts of one step, the median one: medians of each part would not add up
    const auto part_s = [&](const char* name) { return seconds[name][middle]; };
    const double step_s = part_s("step");
    Table parts({"part", "time", "share"});
    Row row;
    for (const char* name : {"data", "copy", "forward", "backward", "optimiser"})
      parts.add({name, format_seconds(part_s(name)), fmt::format("{:.1f}%", 100 * part_s(name) / step_s)});
    parts.add({"step", format_seconds(step_s), "100.0%"});
    fmt::print("{}", parts.text(2));

    // 6. The roofline, forward, unit by unit. Bytes: input, output and weights once each, the least that must move.
    const Peaks peaks = measure_peaks(workload.device(), options.quick);
    fmt::print("  peaks measured here: matrix product {:.1f} GFLOP/s, copy {:.1f} GB/s; they cross at {:.1f} flops per byte\n", peaks.flops_per_s / 1e9,
               peaks.bytes_per_s / 1e9, peaks.flops_per_s / peaks.bytes_per_s);
    Table roofline({"unit", "MFLOP", "moves", "flops/byte", "limit", "predicted", "measured", "of the roof"});
    const torch::NoGradGuard no_grad;
    auto x = model->example_input(workload.batch()).to(workload.device());
    int number = 0;
    for (const auto& unit : model->units()) {
      torch::Tensor y;
      const double flops = count_flops([&] { y = unit->forward(x); });
      const double bytes = 4.0 * static_cast<double>(x.numel() + y.numel() + parameter_count(*unit));
      const double compute_s = flops / peaks.flops_per_s, move_s = bytes / peaks.bytes_per_s, roof_s = std::max(compute_s, move_s);
      const double measured_s = median_seconds(options.quick ? 3 : 15, [&] { unit->forward(x); });
      roofline.add({fmt::format("{}", ++number), fmt::format("{:.1f}", flops / 1e6), format_bytes(static_cast<int64_t>(bytes)), fmt::format("{:.1f}", flops / bytes),
                    compute_s > move_s ? "compute" : "memory", format_seconds(roof_s), format_seconds(measured_s), fmt::format("{:.0f}%", 100 * roof_s / measured_s)});
      x = y;
    }
    fmt::print("{}", roofline.text(2));

    // 7. MFU: what training needs at least, over what the device could do in that time.
    const double rate = static_cast<double>(workload.batch()) / step_s, flops = train_flops_per_sample(*model), reached = mfu(flops, rate, peaks.flops_per_s);
    fmt::print("  MFU: {:.1f} MFLOP per sample x {:.0f} samples/s = {:.1f} GFLOP/s: {:.0f}% of the measured peak, {}\n", flops / 1e6, rate, flops * rate / 1e9, 100 * reached,
               spec_gflops > 0 ? fmt::format("{:.0f}% of the specified", 100 * mfu(flops, rate, 1e9 * spec_gflops)) : "no specified peak given (--spec-gflops)");

    // 8. Record.
    row.set("variant", "baseline").set("workload", workload.name()).set("kind", "measured").set("dtype", "float32");
    row.set("batch", workload.batch()).set("iterations", static_cast<int64_t>(seconds["step"].size())).set("median_s", step_s).set("rate", rate).set("rate_unit", "samples/s");
    row.set("data_wait_s", part_s("data")).set("compute_s", part_s("forward") + part_s("backward")).set("optimizer_s", part_s("optimiser"));
    row.set("measured", reached).set("unit", "MFU of measured peak");
    write_row(process, row);
    if (!options.trace.empty()) {
      write_trace(options.trace, {trace.to_json_events()});
      fmt::print("  trace: {} (open it in ui.perfetto.dev)\n", options.trace);
    }
    workload.close();
  });
}
