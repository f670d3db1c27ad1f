// All gradients in one flat buffer: one all-reduce per step, and the fewest bytes through memory.
//
// You learn   that a call costs a meeting of all ranks, so few large ones beat many small ones; that memory which peers can
//             read (world.allocate) spares a copy on the way in and another on the way out.
// Run it      mpirun -np 2 build/03_data_parallel/02_bucketed
//             mpirun -np 4 build/03_data_parallel/02_bucketed --model resnet18 --optimizer sgd
// You see     the same bits and the same bytes as 01_naive, in one call:
//               quantity              predicted  measured  error
//               bytes sent per step     1.6 MiB   1.6 MiB  +0.00%
//               all-reduces per step          1         1  +0.00%
//               step 22.9 ms, without communication 21.6 ms: exposed 395 us
// Read next   diff 02_bucketed.cpp 03_overlapped.cpp
#include "workload.hpp"  // Workload, train_serially, verify_model, time_exposed

#include "parallel/replicate.hpp"     // replicate, check_finite
#include "train/flat_parameters.hpp"  // FlatParameters

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("03_data_parallel/02_bucketed", "one all-reduce of all gradients, after backward");
    Workload workload(options);
    process.start(options);
    workload.device = process.device();
    Communicator& world = process.world();

    // 2. Serial reference: one process that sees every rank's samples, in rank order.
    const Reference reference = train_serially(workload, world, workload.steps());

    // 3. The same model everywhere, with rank 0's weights. Gradients are views of one buffer, in memory that peers can read.
    auto model = workload.make();
    replicate(world, *model);
    FlatParameters flat(*model, 1, [&](int64_t count, const char*) { return world.allocate({count}, torch::kFloat); });
    auto optimizer = workload.optimizer_maker()(flat.parameters(), flat.gradients());

    const auto step = [&](int64_t number, bool communicate) {
      process.set_step(number);
      const auto [x, y] = workload.samples(number, world.rank());
      flat.zero_grad();
      const auto loss = cross_entropy(model->forward(x), y);
      check_finite(loss);
      loss.backward();
      // The lesson: one call for all. Backward wrote straight into the buffer, and so does the sum.
      if (communicate) world.all_reduce(flat.gradients());
      // The mean of N shards is the sum times 1/N. The optimiser multiplies on the way: no pass over memory of its own.
      optimizer->step(workload.learning_rate(), 1.0 / world.size());
    };

    // 4. Distributed run, then verify: bits, because the sum is made in rank order on both sides.
    for (int64_t i = 0; i < workload.steps(); ++i) step(i, true);
    verify_model(process, *model, reference, workload.steps());
    if (options.verify_only) return;

    // 5. Count one step's bytes.
    world.reset_traffic();
    step(workload.steps(), true);
    const Traffic traffic = world.traffic();
    const double predicted = all_reduce_bytes(flat.count(), world.size());
    Comparison comparison;
    comparison.bytes("bytes sent per step", predicted, static_cast<double>(traffic.bytes_sent));
    comparison.count("all-reduces per step", 1, static_cast<double>(traffic.calls));

    // 6. Time, and report.
    int64_t number = workload.steps();
    const Exposed exposed = time_exposed(world, workload.timed_steps(), [&](bool communicate) { step(++number, communicate); });
    if (process.is_root()) fmt::print("{}", comparison.text());
    report_step(process, workload, "bucketed", exposed, predicted, static_cast<double>(traffic.bytes_sent));
  });
}
