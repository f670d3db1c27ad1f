// Bubble and peak activations of every schedule against m: counted from the schedule (exact), and measured on the ranks there are.
//
//   mpirun -np 2 build/06_pipeline/bench/bench_bubble                   real computation: one stage per core
//   mpirun -np 4 build/06_pipeline/bench/bench_bubble_waiting --waiting stages that wait a calibrated time: kind = synthetic
#include <thread>

#include "comm/communicator.hpp"
#include "generate.hpp"
#include "measure/allocator.hpp"
#include "measure/provenance.hpp"
#include "measure/table.hpp"
#include "partition.hpp"
#include "report.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;

namespace {

// Waits instead of computing. Its messages are real, of 1 element.
class WaitingStage : public Stage {
 public:
  WaitingStage(double unit_s, int chunks) : unit_s_(unit_s / chunks) {}
  torch::Tensor forward(int, torch::Tensor) override { return wait(1); }
  torch::Tensor backward(int, torch::Tensor) override { return wait(2); }
  torch::Tensor backward_input(int, torch::Tensor) override { return wait(1); }
  void backward_weight(int) override { wait(1); }
  torch::Tensor shape_of_output(torch::Tensor) override { return torch::zeros({1}); }

 private:
  torch::Tensor wait(int units) const {
    std::this_thread::sleep_for(std::chrono::duration<double>(unit_s_ * units));
    return torch::zeros({1});
  }
  double unit_s_;
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
    options.app().add_flag("--waiting", waiting, "stages that wait instead of compute");
    options.app().add_option("--unit-ms", unit_ms, "how long a waiting stage's forward pass takes")->check(CLI::PositiveNumber);
    options.app().add_option("--width", width, "of each layer of the mlp")->check(CLI::PositiveNumber);
    process.start(options);
    CountingAllocator::install();
    Communicator& world = process.world();
    const int p = world.size();
    if (options.quick) width = 64, unit_ms = 2;

    Table table({"schedule", "p", "m", "theory", "counted", "measured", "points off", "peak live", "peak bytes"});
    for (const std::string& name : schedule_names())
      for (const int m : options.quick ? std::vector<int>{4} : std::vector<int>{2, 4, 8, 16}) {
        const int chunks = name == "interleaved" ? 2 : 1;
        const Schedule schedule = generate(name, p, m, chunks);
        const Count counted = count(schedule);
        const auto theory = theory_bubble(schedule);

        // Verify, then time: the waiting stages have nothing to verify but their order, which expect_sound() did.
        std::vector<Run> runs;
        if (waiting) {
          std::vector<WaitingStage> stages(chunks, WaitingStage(unit_ms * 1e-3, chunks));
          std::vector<Stage*> parts;
          for (WaitingStage& stage : stages) parts.push_back(&stage);
          Engine engine(world, schedule, parts);
          engine.learn_shapes(torch::zeros({1}));
          runs = run_steps(world, engine, std::vector<torch::Tensor>(m, torch::zeros({1})), options.steps_or(3, 1), [] {});
        } else {
          const auto work = make_mlp_workload(width, layers, 64, m, options.seed);
          const auto serial = work->serial_gradients();
          const auto cut = partition_units(work->unit_sizes(), schedule.virtual_stages());
          const auto stages = cut_model(*work->model, cut.units, world.rank(), p, {.seed = options.seed}, work->loss);
          Engine engine(world, schedule, pointers(stages));
          engine.learn_shapes(work->inputs[0]);
          runs = run_steps(world, engine, work->inputs, options.steps_or(5, 1), [&] {
            clear_gradients(stages);
            for (const auto& stage : stages) stage->begin_step(0);
          });
          expect_serial(stages, serial);
        }
        const Measured measured = gather_runs(process, runs);
        // F : B : W as measured; the bubble of gpipe and 1f1b does not depend on it.
        const double predicted = waiting ? counted.bubble.value() : count(schedule, measured.costs_ns).bubble.value();
        const int64_t peak_bytes = *std::max_element(measured.peak_bytes.begin(), measured.peak_bytes.end());
        const int peak_live = *std::max_element(counted.peak_live.begin(), counted.peak_live.end());
        Row row;
        row.set("variant", name).set("workload", fmt::format("p={} m={} v={}", p, m, chunks)).set("kind", waiting ? "synthetic" : "measured");
        row.set("iterations", static_cast<int64_t>(runs.size())).set("median_s", measured.step_s).set("predicted", predicted).set("measured", measured.bubble);
        row.set("unit", "bubble").set("peak_bytes", peak_bytes);
        fill(row, world);
        write_row(process, row);
        table.add({name, std::to_string(p), std::to_string(m), theory ? fmt::format("{:.1f}%", 100 * theory->value()) : "-", fmt::format("{:.1f}%", 100 * counted.bubble.value()),
                   fmt::format("{:.1f}%", 100 * measured.bubble), fmt::format("{:+.1f}", 100 * (measured.bubble - predicted)), std::to_string(peak_live),
                   waiting ? "-" : format_bytes(peak_bytes)});
      }
    if (process.is_root()) fmt::print("{}{}", table.text(), waiting ? "stages wait instead of compute: synthetic\n" : "");

    // Counted for sizes that no machine here has.
    if (!process.is_root()) return;
    for (const std::string& name : schedule_names())
      for (const int stages : {2, 4, 8, 16})
        for (const int m : {4, 8, 16, 32, 64}) {
          const Schedule schedule = generate(name, stages, m, name == "interleaved" ? 2 : 1);
          const auto theory = theory_bubble(schedule);
          Row row;
          row.set("variant", name).set("workload", fmt::format("p={} m={} v={}", stages, m, schedule.chunks)).set("kind", "simulated").set("unit", "bubble counted");
          if (theory) row.set("predicted", theory->value());
          row.set("measured", count(schedule).bubble.value());
          write_row(process, row);
        }
  });
}
