// Bubble and peak activations of every schedule against m: counted from the schedule (exact), and measured on the ranks there are.
//
//   mpirun -np 2 build/06_pipeline/bench/bench_bubble                   real computation: one stage per core
//   mpirun -np 4 build/06_pipeline/bench/bench_bubble --waiting         stages that wait a calibrated time: kind = synthetic
#include <thread>

#include "comm/communicator.hpp"
#include "generate.hpp"
#include "measure/provenance.hpp"
#include "measure/statistics.hpp"
#include "measure/table.hpp"
#include "partition.hpp"
#include "report.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;

namespace {

// How much longer a sleep takes than asked: subtracted from each wait, so that a unit is a unit.
std::chrono::duration<double> calibrate(std::chrono::duration<double> unit) {
  std::vector<double> late;
  for (int i = 0; i < 21; ++i) {
    const WallTimer timer;
    std::this_thread::sleep_for(unit);
    late.push_back(timer.seconds() - unit.count());
  }
  return std::chrono::duration<double>(std::max(0.0, median(late)));
}

// Waits instead of computing: F = B = W, so that a whole backward pass takes 2 units. Its messages are real, of 1 element.
class WaitingStage : public Stage {
 public:
  WaitingStage(std::chrono::duration<double> unit, std::chrono::duration<double> late) : unit_(unit), late_(late) {}
  torch::Tensor forward(int, torch::Tensor) override { return wait(1); }
  torch::Tensor backward(int, torch::Tensor) override { return wait(2); }
  torch::Tensor backward_input(int, torch::Tensor) override { return wait(1); }
  void backward_weight(int) override { wait(1); }
  torch::Tensor shape_of_output(torch::Tensor) override { return torch::zeros({1}); }

 private:
  torch::Tensor wait(int units) const {
    std::this_thread::sleep_for(unit_ * units - late_);
    return torch::zeros({1});
  }
  std::chrono::duration<double> unit_, late_;
};

std::vector<Run> run_steps(Communicator& world, Engine& engine, const std::vector<torch::Tensor>& inputs, int64_t steps, const std::function<void()>& before) {
  std::vector<Run> runs;
  for (int64_t i = 0; i <= steps; ++i) {
    before();
    world.barrier();
    Run run = engine.run(inputs);
    if (i > 0) runs.push_back(std::move(run));  // the first one warms up
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("06_pipeline/bench_bubble", "bubble and activations of every schedule: counted and measured");
    bool waiting = false;
    int64_t width = 1024, layers = 8;
    double unit_ms = 8;
    options.add("--waiting", waiting, "stages that wait instead of compute");
    options.add("--unit-ms", unit_ms, "how long a waiting stage's forward pass takes").positive();
    options.add("--width", width, "of each layer of the mlp").positive();
    process.start(options);
    keep_freed_memory();
    Communicator& world = process.world();
    const int p = world.size();
    layers = std::max<int64_t>(layers, 2 * p);  // a layer for each of the two chunks
    if (options.quick) width = 512, unit_ms = 1;  // a stage must take much longer than a message, or the figure shows latency
    const std::vector<int> microbatches = options.quick ? std::vector<int>{2, 4, 8} : std::vector<int>{2, 4, 8, 16};

    // 1. On the ranks there are. Theory with F : B : W as measured: only zb-h1's depends on it.
    Table table({"schedule", "p", "m", "theory", "measured", "points off", "held, counted", "held, bytes", "one microbatch"});
    for (const std::string& name : schedule_names())
      for (const int m : microbatches) {
        const int chunks = name == "interleaved" ? 2 : 1;
        const Schedule schedule = generate(name, p, m, chunks);
        std::vector<Run> runs;
        if (waiting) {  // nothing to verify but the order, which the engine does
          const std::chrono::duration<double> unit(unit_ms * 1e-3 / chunks);
          std::vector<WaitingStage> stages(chunks, WaitingStage(unit, calibrate(unit)));
          std::vector<Stage*> parts;
          for (WaitingStage& stage : stages) parts.push_back(&stage);
          Engine engine(world, schedule, parts);
          engine.learn_shapes(torch::zeros({1}));
          runs = run_steps(world, engine, std::vector<torch::Tensor>(m, torch::zeros({1})), options.steps_or(5, 3), [] {});
        } else {
          const auto work = make_mlp_workload(width, layers, 64, m, options.seed, process.device());
          const auto serial = work->serial_gradients();
          const auto cut = partition_units(work->unit_sizes(), schedule.virtual_stages());
          const auto stages = cut_model(*work->model, cut.units, world.rank(), p, {.seed = options.seed}, work->loss);
          Engine engine(world, schedule, pointers(stages));
          engine.learn_shapes(work->inputs[0]);
          runs = run_steps(world, engine, work->inputs, options.steps_or(15, 3), [&] {
            clear_gradients(stages);
            for (const auto& stage : stages) stage->begin_step(0);
          });
          expect_serial(stages, serial);
        }
        const Measured measured = gather_runs(process, runs, p);
        const Costs costs = waiting ? Costs{} : measured.costs_ns;
        const auto formula = theory_bubble(schedule, costs);
        const Count counted = count(schedule, costs);
        const double predicted = formula ? formula->value() : counted.bubble.value();
        // Stage 0 holds most of all, in every schedule but the naive one, where all hold the same.
        const std::string workload = fmt::format("p={} m={} v={}", p, m, chunks);
        Row row;
        row.set("variant", name).set("workload", workload).set("kind", waiting ? "synthetic" : "measured").set("iterations", static_cast<int64_t>(runs.size()));
        row.set("median_s", measured.step_s).set("peak_bytes", measured.peak_bytes[0]);
        fill(row, world);
        write_row(process, Row(row).set("unit", "bubble").set("predicted", predicted).set("measured", measured.bubble));
        if (!waiting)
          write_row(process, Row(row).set("unit", "held").set("predicted", double(counted.peak_live[0])).set("measured", double(measured.peak_bytes[0]) / double(measured.one_bytes[0])));
        table.add({name, std::to_string(p), std::to_string(m), fmt::format("{:.1f}%{}", 100 * predicted, formula ? "" : " (counted)"), fmt::format("{:.1f}%", 100 * measured.bubble),
                   fmt::format("{:+.1f}", 100 * (measured.bubble - predicted)), std::to_string(counted.peak_live[0]), waiting ? "-" : format_bytes(measured.peak_bytes[0]),
                   waiting ? "-" : format_bytes(measured.one_bytes[0])});
      }
    if (process.is_root()) fmt::print("{}{}", table.text(), waiting ? "stages wait instead of compute: synthetic\n" : "");

    // 2. Counted, also for sizes that no machine here has.
    if (waiting) return;
    for (const std::string& name : schedule_names())
      for (const int stages : {2, 4, 8, 16})
        for (const int m : {4, 8, 16, 32, 64}) {
          const Schedule schedule = generate(name, stages, m, name == "interleaved" ? 2 : 1);
          const Count counted = count(schedule);
          Row row;
          row.set("variant", name).set("workload", fmt::format("p={} m={} v={}", stages, m, schedule.chunks)).set("kind", "simulated");
          const auto formula = theory_bubble(schedule);
          Row bubble = Row(row).set("unit", "bubble counted").set("measured", counted.bubble.value());
          if (formula) bubble.set("predicted", formula->value());
          write_row(process, bubble);
          Row held = Row(row).set("unit", "held counted").set("measured", counted.peak_live[0]);
          if (const auto peak = theory_peak_live(schedule, 0)) held.set("predicted", *peak);
          write_row(process, held);
        }
  });
}
