// 1F1B: start each backward pass as soon as its gradient is there. The same bubble as GPipe, but bounded memory.
//
// You learn   why order alone changes memory: stage i holds min(m, p-i) microbatches, whatever m is, so m can grow until the bubble
//             (p-1)/(m + p-1) no longer hurts. And why neighbours that send to each other at once need a buffer, or deadlock.
// Run it      mpirun -np 2 build/06_pipeline/03_one_f_one_b --microbatches 8
//             mpirun -np 4 build/06_pipeline/03_one_f_one_b --quick
//             diff 06_pipeline/02_gpipe.cpp 06_pipeline/03_one_f_one_b.cpp
// You see     ideal (F = 1, B = 2):
//               stage 0 |F0F1....B0B0F2B1B1F3B2B2..B3B3|
//               stage 1 |..F0B0B0F1B1B1F2B2B2F3B3B3....|
//             and "stage 0 holds 2 of ..." where GPipe holds all m
// Read next   one_f_one_b_schedule in generate.cpp; then 04_interleaved.cpp
#include "check.hpp"                 // fewest_buffers
#include "comm/communicator.hpp"     // Communicator
#include "engine.hpp"                // Engine
#include "generate.hpp"              // one_f_one_b_schedule
#include "launch/process.hpp"        // Process
#include "partition.hpp"             // partition_units
#include "report.hpp"                // Workload, expect_serial, report

using namespace manyranks;
using namespace manyranks::pipeline;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("06_pipeline/03_one_f_one_b", "one forward, one backward: each backward frees what the next forward needs");
    int microbatches = 4;
    int64_t width = 1024, layers = 8;
    std::string file, save;
    options.add("--microbatches", microbatches, "parts of the global batch").positive();
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
    const Schedule schedule = file.empty() ? one_f_one_b_schedule(world.size(), microbatches) : load_schedule(file);
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
