// Recomputation (activation checkpointing): hold only the input of each unit, and run its forward pass again when its gradient comes.
//
// You learn   the trade of memory for time: a microbatch holds one tensor per unit instead of all that its layers keep, and a backward
//             pass costs a forward pass more: (2F + B)/(F + B), 4/3 where B = 2F. With the same random numbers the second forward
//             pass is the first one, so the gradients are the same bits, dropout included.
// Run it      mpirun -np 2 build/06_pipeline/06_recompute --microbatches 8
//             mpirun -np 4 build/06_pipeline/06_recompute --quick
// You see     the same 1F1B schedule twice: bytes held by each stage, and the time of a step, with and without
// Traps       batch normalisation sees each microbatch twice, so its running statistics move twice as far; a layer that draws random
//             numbers must draw the same ones again (seed_unit in stage.cpp)
// Read next   UnitStage::walk_back in stage.cpp; then 07_train.cpp
#include "comm/communicator.hpp"     // Communicator
#include "engine.hpp"                // Engine
#include "generate.hpp"              // one_f_one_b_schedule
#include "launch/process.hpp"        // Process
#include "measure/provenance.hpp"    // write_row
#include "measure/table.hpp"         // Table, format_bytes
#include "partition.hpp"             // partition_units
#include "report.hpp"                // Workload, expect_serial, gather_runs

using namespace manyranks;
using namespace manyranks::pipeline;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("06_pipeline/06_recompute", "hold inputs, compute the rest again");
    int microbatches = 4;
    ModelShape shape = usual_shape("gpt");
    shape.layers = 6;
    shape.dropout = 0.1;
    options.add("--microbatches", microbatches, "parts of the global batch").positive();
    options.add("--width", shape.width, "embedding of the gpt").positive();
    options.add("--layers", shape.layers, "blocks of the gpt").positive();

    // 2. Launch. Rank i is stage i.
    process.start(options);
    keep_freed_memory();
    Communicator& world = process.world();
    if (options.quick) shape.width = 32, shape.context = 16;

    // 3. Data and serial reference.                                                              inputs[i]: (batch, context) tokens
    torch::manual_seed(options.seed);
    const auto work = make_workload(make_model("gpt", shape), options.batch_or(8), microbatches, options.seed, process.device());
    const auto serial = work->serial_gradients();
    const Schedule schedule = one_f_one_b_schedule(world.size(), microbatches);
    const auto cut = partition_units(work->unit_sizes(), world.size());

    // 4. The same schedule, holding everything and holding inputs only: verify, then time.
    Measured results[2];
    for (const bool recompute : {false, true}) {
      const auto stages = cut_model(*work->model, cut.units, world.rank(), world.size(), {.seed = options.seed, .recompute = recompute}, work->loss);
      Engine engine(world, schedule, pointers(stages));
      engine.learn_shapes(work->inputs[0]);
      const auto step = [&] {
        clear_gradients(stages);
        for (const auto& stage : stages) stage->begin_step(0);
        world.barrier();
        return engine.run(work->inputs);
      };
      step();
      expect_serial(stages, serial);
      world.barrier();
      if (process.is_root()) fmt::print("{}: gradients equal the serial run bit by bit\n", recompute ? "recompute" : "hold all");
      if (options.verify_only) continue;
      std::vector<Run> runs;
      for (int64_t i = 0; i < options.steps_or(7, 3); ++i) runs.push_back(step());
      results[recompute] = gather_runs(process, runs, world.size());
    }
    if (options.verify_only) return;

    // 5. Predict, then compare. Recomputing costs one more forward pass per backward pass.
    const Costs& held = results[0].costs_ns;
    const double predicted = static_cast<double>(2 * held.forward + held.backward()) / static_cast<double>(held.forward + held.backward());
    const double measured = results[1].step_s / results[0].step_s;
    for (const bool recompute : {false, true}) {
      Row row;
      row.set("variant", recompute ? "recompute" : "hold").set("workload", "gpt").set("kind", "measured").set("median_s", results[recompute].step_s);
      row.set("peak_bytes", results[recompute].peak_bytes[0]).set("unit", "step over step without recomputation");
      if (recompute) row.set("predicted", predicted).set("measured", measured);
      fill(row, world);
      write_row(process, row);
    }
    if (!process.is_root()) return;
    Table table({"", "hold all", "recompute"});
    for (int stage = 0; stage < world.size(); ++stage)
      table.add({fmt::format("stage {} holds", stage), format_bytes(results[0].peak_bytes[stage]), format_bytes(results[1].peak_bytes[stage])});
    table.add({"step", format_seconds(results[0].step_s), format_seconds(results[1].step_s)});
    fmt::print("{}  time of a step: predicted {:.2f}x ((2F + B)/(F + B)), measured {:.2f}x\n", table.text(2), predicted, measured);
  });
}
