// Interleaved 1F1B: give each rank v small chunks of the model instead of one large one. Filling takes v times less.
//
// You learn   virtual stages: chunk c of rank i is stage c*p + i of p*v, so activations go round the ranks v times; the bubble falls to
//             (p-1)/(vm + p-1); the price is v times the messages, and more activations than 1F1B.
// Run it      mpirun -np 2 build/06_pipeline/04_interleaved --microbatches 8 --chunks 2
//             mpirun -np 4 build/06_pipeline/04_interleaved --quick
//             diff 06_pipeline/03_one_f_one_b.cpp 06_pipeline/04_interleaved.cpp
// You see     the ideal and the measured chart: F and B of chunk 0, f and b of chunk 1, a shorter ramp at both ends. A cell is now
//             half as long as in 03: each chunk is half a stage.
// Read next   interleaved_schedule in generate.cpp (also: what if p does not divide m?); then 05_zero_bubble.cpp
#include "check.hpp"                 // fewest_buffers
#include "comm/communicator.hpp"     // Communicator
#include "engine.hpp"                // Engine
#include "generate.hpp"              // interleaved_schedule
#include "launch/process.hpp"        // Process
#include "partition.hpp"             // partition_units
#include "report.hpp"                // Workload, expect_serial, report

using namespace manyranks;
using namespace manyranks::pipeline;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("06_pipeline/04_interleaved", "1F1B over p*v virtual stages");
    int microbatches = 4, chunks = 2;
    int64_t width = 1024, layers = 8;
    std::string file, save;
    options.add("--microbatches", microbatches, "parts of the global batch").positive();
    options.add("--chunks", chunks, "of the model on each rank (v)").positive();
    options.add("--width", width, "of each layer").positive();
    options.add("--layers", layers, "of the model").positive();
    options.add("--schedule", file, "run this schedule (CSV) instead");
    options.add("--save", save, "write the schedule as CSV, to change and run it");

    // 2. Launch. Rank i is stage i.
    process.start(options);
    keep_freed_memory();
    Communicator& world = process.world();
    if (options.quick) width = 128;

    // 3. The schedule: for each stage the list of what it does. It is checked before anything runs.
    const Schedule schedule = file.empty() ? interleaved_schedule(world.size(), microbatches, chunks) : load_schedule(file);
    expect_sound(schedule);
    if (process.is_root() && !save.empty()) save_schedule(schedule, save);
    if (process.is_root()) fmt::print("schedule {}: sound; needs {} buffer(s) per channel\n", schedule.name, fewest_buffers(schedule).value());

    // 4. Data and serial reference.                                                             inputs[i]: (batch, 32)
    const auto work = make_mlp_workload(width, layers, options.batch_or(64), schedule.microbatches, options.seed, process.device());
    const auto serial = work->serial_gradients();

    // 5. My stage, and the engine that executes its list.
    const auto cut = partition_units(work->unit_sizes(), schedule.virtual_stages());
    const auto stages = cut_model(*work->model, cut.units, world.rank(), world.size(), {.seed = options.seed}, work->loss);
    Engine engine(world, schedule, pointers(stages));
    engine.learn_shapes(work->inputs[0]);
    const auto step = [&] {
      clear_gradients(stages);
      for (const auto& stage : stages) stage->begin_step(0);
      world.barrier();
      return engine.run(work->inputs);
    };

    // 6. Verify.
    step();
    expect_serial(stages, serial);
    world.barrier();
    if (process.is_root()) fmt::print("gradients of {} stage(s) equal the serial run bit by bit\n", world.size());
    if (options.verify_only) return;

    // 7. Time and report.
    std::vector<Run> runs;
    for (int64_t i = 0; i < options.steps_or(7, 3); ++i) runs.push_back(step());
    report(process, schedule, runs, fmt::format("mlp{}x{}", layers, width));
  });
}
