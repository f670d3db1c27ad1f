// ZeRO-1: the optimiser's state is the largest thing that every rank holds a copy of. Hold 1/N of it.
//
// You learn   that an all-reduce is a reduce-scatter and an all-gather, and that the optimiser can step in between: each rank
//             updates 1/N of the parameters, with 1/N of the state, for the same bytes on the wire.
// Run it      mpirun -np 2 build/03_data_parallel/06_zero1
//             mpirun -np 4 build/03_data_parallel/06_zero1 --model resnet18
// You see     the same bits as the serial run, from 8 + 8/N bytes per parameter instead of 16 (fp32 Adam):
//               quantity             predicted  measured   error
//               optimiser state        1.6 MiB   1.6 MiB  +0.00%      (3.2 MiB without ZeRO)
// Read next   diff 06_zero1.cpp 07_zero2.cpp
#include "workload.hpp"  // Workload, train_serially, verify_model, time_exposed

#include "measure/allocator.hpp"      // CountingAllocator, MemoryTag
#include "parallel/replicate.hpp"     // replicate, check_finite, allocate_shared
#include "train/flat_parameters.hpp"  // FlatParameters

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch. From here on every tensor byte is counted.
    Options options("03_data_parallel/06_zero1", "ZeRO-1: optimiser state in N shards");
    Workload workload(options);
    process.start(options);
    workload.device = process.device();
    Communicator& world = process.world();
    auto& memory = CountingAllocator::get();

    // 2. Serial reference.
    const Reference reference = train_serially(workload, world, workload.steps());

    // 3. Parameters and gradients whole, padded so that N shards are of one size; state for my shard only.
    auto model = workload.make();
    replicate(world, *model);
    FlatParameters flat(*model, world.size(), [&](int64_t count, const char* purpose) {
      return allocate_shared(world, count, std::string_view(purpose) == "parameters" ? Tag::parameters : Tag::gradients);
    });
    const int64_t shard = flat.parameters().numel() / world.size();
    const torch::Tensor my_parameters = flat.parameters().narrow(0, world.rank() * shard, shard);
    const torch::Tensor my_gradients = flat.gradients().narrow(0, world.rank() * shard, shard);
    std::unique_ptr<Optimizer> optimizer;
    {
      const MemoryTag tag(Tag::optimizer, "optimiser state");
      optimizer = workload.optimizer_maker()(my_parameters, my_gradients);
    }

    const auto step = [&](int64_t number, bool communicate) {
      process.set_step(number);
      const auto [x, y] = workload.samples(number, world.rank());
      flat.zero_grad();
      {
        const MemoryTag tag(Tag::activations);
        const auto loss = cross_entropy(model->forward(x), y);
        check_finite(loss);
        loss.backward();
      }
      // The lesson: the first half of an all-reduce, the step on my shard, the second half. P(N-1)/N elements sent each time.
      if (communicate) world.reduce_scatter(my_gradients, flat.gradients());
      optimizer->step(workload.learning_rate(), 1.0 / world.size());
      if (communicate) world.all_gather(flat.parameters(), my_parameters);
    };

    // 4. Distributed run, then verify. Gradients are summed only in my shard: the parameters are what must agree.
    for (int64_t i = 0; i < workload.steps(); ++i) step(i, true);
    for (const auto& slot : flat.slots()) slot.parameter.mutable_grad() = torch::Tensor();
    verify_model(process, *model, reference, workload.steps());
    for (const auto& slot : flat.slots()) slot.parameter.mutable_grad() = view_like(flat.gradients(), slot.begin, slot.parameter);

    // 5. Memory at the step boundary: 4 + 4 + 8/N bytes per parameter with Adam, 4 + 4 + 4/N with SGD and momentum.
    const double count = static_cast<double>(flat.count()), n = world.size(), state = workload.optimizer == "adam" ? 8 : 4;
    Comparison comparison;
    comparison.bytes("parameters", 4 * count, static_cast<double>(memory.live_bytes(Tag::parameters)));
    comparison.bytes("gradients", 4 * count, static_cast<double>(memory.live_bytes(Tag::gradients)));
    comparison.bytes("optimiser state", state / n * count, static_cast<double>(memory.live_bytes(Tag::optimizer)));
    if (options.verify_only) return;

    // 6. Bytes, time, report.
    world.reset_traffic();
    step(workload.steps(), true);
    const double predicted = all_reduce_bytes(flat.count(), world.size()), sent = static_cast<double>(world.traffic().bytes_sent);
    comparison.bytes("bytes sent per step", predicted, sent);
    int64_t number = workload.steps();
    const Exposed exposed = time_exposed(world, workload.timed_steps(), [&](bool communicate) { step(++number, communicate); });
    if (process.is_root()) fmt::print("{}", comparison.text());
    report_step(process, workload, "zero1", exposed, predicted, sent);
  });
}
