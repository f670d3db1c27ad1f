// Data parallelism in one line: sum the gradients over all ranks before the optimiser looks at them.
//
// You learn   why N ranks with a batch of B each do what one process does with N batches of B; that one all-reduce per
//             parameter is right but slow: each call costs a meeting of all ranks, however few bytes it moves.
// Run it      mpirun -np 2 build/03_data_parallel/01_naive
//             mpirun -np 4 build/03_data_parallel/01_naive --model resnet18 --optimizer sgd
// You see     the same bits as a serial run, then what it costs:
//               gradients and parameters equal the serial run's, bit by bit, after 20 steps on 2 rank(s)
//               quantity              predicted  measured   error
//               bytes sent per step     1.6 MiB   1.6 MiB  +0.00%
//               all-reduces per step          8         8  +0.00%
//               step 20.7 ms, without communication 18.8 ms: exposed 1.04 ms
// Read next   diff 01_naive.cpp 02_bucketed.cpp
#include "workload.hpp"  // Workload, train_serially, verify_model, time_exposed

#include "parallel/replicate.hpp"     // replicate, check_finite
#include "train/flat_parameters.hpp"  // FlatParameters

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("03_data_parallel/01_naive", "one all-reduce per parameter, after backward");
    Workload workload(options);
    process.start(options);
    workload.device = process.device();
    Communicator& world = process.world();

    // 2. Serial reference: one process that sees every rank's samples, in rank order.
    const Reference reference = train_serially(workload, world, workload.steps());

    // 3. The same model everywhere, with rank 0's weights; parameters and gradients as views of two flat buffers.
    auto model = workload.make();
    replicate(world, *model);
    FlatParameters flat(*model);
    auto optimizer = workload.optimizer_maker()(flat.parameters(), flat.gradients());

    const auto step = [&](int64_t number, bool communicate) {
      process.set_step(number);
      const auto [x, y] = workload.samples(number, world.rank());
      flat.zero_grad();
      const auto loss = cross_entropy(model->forward(x), y);
      check_finite(loss);
      loss.backward();
      // The lesson: after this, every rank holds the same sum, and so makes the same step.
      if (communicate)
        for (const auto& slot : flat.slots()) world.all_reduce(slot.parameter.grad());
      // The mean of N shards is the sum times 1/N. The optimiser multiplies on the way: no pass over memory of its own.
      optimizer->step(workload.learning_rate(), 1.0 / world.size());
    };

    // 4. Distributed run, then verify: bits, because the sum is made in rank order on both sides.
    for (int64_t i = 0; i < workload.steps(); ++i) step(i, true);
    verify_model(process, *model, reference, workload.steps());
    if (options.verify_only) return;

    // 5. Count one step's bytes: a rank sends 2(N-1)/N of the gradients, whatever N: 4 bytes x 2 x parameters at most.
    world.reset_traffic();
    step(workload.steps(), true);
    const Traffic traffic = world.traffic();
    const double predicted = all_reduce_bytes(flat.count(), world.size());
    Comparison comparison;
    comparison.bytes("bytes sent per step", predicted, static_cast<double>(traffic.bytes_sent));
    comparison.count("all-reduces per step", static_cast<double>(flat.slots().size()), static_cast<double>(traffic.calls));

    // 6. Time, and report.
    int64_t number = workload.steps();
    const Exposed exposed = time_exposed(world, workload.timed_steps(), [&](bool communicate) { step(++number, communicate); });
    if (process.is_root()) fmt::print("{}", comparison.text());
    report_step(process, workload, "naive", exposed, predicted, static_cast<double>(traffic.bytes_sent));
  });
}
