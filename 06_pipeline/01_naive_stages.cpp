// A model too large for one device: cut it into stages, one per rank. Activations go down the wire, gradients come back up.
//
// You learn   what crosses a cut (one tensor each way per microbatch), how autograd is cut there, and why this alone is no
//             speed-up: while one stage works, all others wait. Idle: (p-1)/p of all time.
// Run it      mpirun -np 2 build/06_pipeline/01_naive_stages
//             mpirun -np 4 build/06_pipeline/01_naive_stages --quick
// You see     ideal (F = 1, B = 2):
//               stage 0 |F0......B0B0F1......B1B1F2......B2B2F3......B3B3|
//               stage 1 |..F0B0B0......F1B1B1......F2B2B2......F3B3B3....|
//             the gradients equal the serial run bit by bit, and a bubble of 50% on 2 stages, 75% on 4
// Read next   02_gpipe.cpp
#include "comm/announce.hpp"         // announce
#include "comm/communicator.hpp"     // Communicator
#include "generate.hpp"              // naive_schedule: the same order as data
#include "launch/process.hpp"        // Process
#include "partition.hpp"             // partition_units
#include "report.hpp"                // Workload, expect_serial, report

using namespace manyranks;
using namespace manyranks::pipeline;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("06_pipeline/01_naive_stages", "one microbatch at a time through the stages");
    int microbatches = 4;
    int64_t width = 1024, layers = 8;
    options.add("--microbatches", microbatches, "parts of the global batch").positive();
    options.add("--width", width, "of each layer").positive();
    options.add("--layers", layers, "of the model").positive();

    // 2. Launch. Rank i is stage i.
    process.start(options);
    keep_freed_memory();
    Communicator& world = process.world();
    const int stage = world.rank(), last = world.size() - 1;
    if (options.quick) width = 128;

    // 3. Data: one global batch in m microbatches, the same on every rank from the seed.       inputs[i]: (batch, 32)
    const auto work = make_mlp_workload(width, layers, options.batch_or(64), microbatches, options.seed, process.device());

    // 4. Serial reference, before the model is cut.
    const auto serial = work->serial_gradients();

    // 5. My stage: consecutive units of the model. Its output is also what the next stage receives: the same shape for all here.
    const auto cut = partition_units(work->unit_sizes(), world.size());
    const auto stages = cut_model(*work->model, cut.units, stage, world.size(), {.seed = options.seed}, work->loss);
    UnitStage& mine = *stages[0];
    const auto boundary = torch::TensorOptions(torch::kFloat32).device(process.device());

    // 6. One step: each microbatch goes all the way down and all the way back before the next one starts.
    const auto step = [&] {
      Run run;
      const auto timed = [&](Kind kind, int microbatch, auto&& body) {
        const double start = Run::now();
        torch::Tensor result = body();
        run.spans.push_back({{kind, microbatch}, start, Run::now()});
        return result;
      };
      mine.begin_step(0);
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        announce(world, fmt::format("stage {}, microbatch {}", stage, microbatch));  // for the others' error lines, should this one die
        torch::Tensor x = work->inputs[microbatch];
        if (stage > 0) world.recv(x = torch::empty({options.batch_or(64), width}, boundary), stage - 1);
        const torch::Tensor y = timed(Kind::forward, microbatch, [&] { return mine.forward(microbatch, x); });
        if (stage < last) world.send(y, stage + 1);  // batch * width * 4 bytes

        torch::Tensor y_gradient;  // of the loss on the last stage: 1
        if (stage < last) world.recv(y_gradient = torch::empty_like(y), stage + 1);
        const torch::Tensor x_gradient = timed(Kind::backward, microbatch, [&] { return mine.backward(microbatch, y_gradient); });
        if (stage > 0) world.send(x_gradient, stage - 1);  // the same size back
      }
      return run;
    };

    // 7. Verify.
    step();
    expect_serial(stages, serial);
    world.barrier();
    if (process.is_root()) fmt::print("gradients of {} stage(s) equal the serial run bit by bit\n", world.size());
    if (options.verify_only) return;

    // 8. Time and report. The order above, as data, is what the ideal chart is drawn from.
    std::vector<Run> runs;
    for (int64_t i = 0; i < options.steps_or(7, 3); ++i) {
      clear_gradients(stages);
      world.barrier();
      runs.push_back(step());
    }
    report(process, naive_schedule(world.size(), microbatches), runs, fmt::format("mlp{}x{}", layers, width));
  });
}
