// ZeRO-3, also called fully sharded: nobody holds the model. A unit is gathered when it is needed, and freed when it is not.
//
// You learn   what it takes to train a model that does not fit on one device: parameters come unit by unit, twice (for forward
//             and for backward), one unit ahead of need; half again as many bytes on the wire as DDP.
// Run it      mpirun -np 2 build/03_data_parallel/08_zero3 --model gpt
//             mpirun -np 4 build/03_data_parallel/08_zero3 --model resnet18 --optimizer sgd
// You see     16/N bytes per parameter (fp32 Adam); above them two units of parameters at most; and each unit come and go:
//               4 units; forward: gathered 4, freed 4; backward: gathered 4, freed 4
// Read next   ../common/parallel/fully_sharded.cpp; chapter 04 splits the units themselves
#include "workload.hpp"  // Workload, train_serially, expect_same, time_exposed

#include "measure/allocator.hpp"        // CountingAllocator, MemoryTag, MemoryEvent
#include "measure/table.hpp"            // format_bytes
#include "parallel/fully_sharded.hpp"   // FullySharded
#include "parallel/replicate.hpp"       // check_finite

using namespace manyranks;

namespace {

// How often memory for parameters came and went.
std::string come_and_go(const std::vector<MemoryEvent>& events) {
  int came = 0, went = 0;
  for (const MemoryEvent& event : events)
    if (event.tag == Tag::parameters) ++(event.bytes > 0 ? came : went);
  return fmt::format("gathered {}, freed {}", came, went);
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch. From here on every tensor byte is counted.
    Options options("03_data_parallel/08_zero3", "ZeRO-3: everything in N shards, gathered unit by unit");
    Workload workload(options);
    double bucket_mb = 1;
    options.add("--bucket-mb", bucket_mb, "the two gradient buffers together, MiB").positive();
    process.start(options);
    workload.device = process.device();
    Communicator& world = process.world();
    auto& memory = CountingAllocator::get();

    // 2. Serial reference.
    const Reference reference = train_serially(workload, world, workload.steps());

    // 3. After this line the model's parameters have no memory: each rank keeps 1/N of every unit.
    auto model = workload.make();
    FullySharded sharded(world, *model, static_cast<int64_t>(bucket_mb * (1 << 20)), workload.optimizer_maker());

    std::string in_forward, in_backward;
    const auto step = [&](int64_t number) {
      process.set_step(number);
      const auto [x, y] = workload.samples(number, world.rank());
      const MemoryTag tag(Tag::activations);
      memory.start_events();
      const auto loss = cross_entropy(sharded.forward(x), y);  // gathers unit u+1 while unit u computes, then frees u
      in_forward = come_and_go(memory.stop_events());
      check_finite(loss);
      memory.start_events();
      loss.backward();                                         // the same in reverse, by hooks on the units' outputs
      sharded.step(workload.learning_rate(), 1.0 / world.size());
      in_backward = come_and_go(memory.stop_events());
    };

    // 4. Distributed run, then verify: the shards, gathered once more.
    for (int64_t i = 0; i < workload.steps(); ++i) step(i);
    const std::string words = expect_same(sums_in_rank_order(world), "parameter", sharded.gather_all(), reference.parameters);
    if (process.is_root()) fmt::print("  parameters {} after {} steps on {} rank(s)\n", words, workload.steps(), world.size());
    if (process.is_root()) fmt::print("  {} units; forward: {}; backward: {}\n", model->units().size(), in_forward, in_backward);

    // 5. Memory: 16/N at the step boundary; the peak of parameters within two units of it.
    const double p = static_cast<double>(parameter_count(*model)), n = world.size(), state = workload.optimizer == "adam" ? 8 : 4;
    memory.reset_peak();
    const double boundary = static_cast<double>(memory.live_bytes(Tag::parameters));
    Comparison comparison;
    comparison.bytes("parameters", 4 / n * p, boundary);
    comparison.bytes("gradients", 4 / n * p, static_cast<double>(memory.live_bytes(Tag::gradients)));
    comparison.bytes("optimiser state", state / n * p, static_cast<double>(memory.live_bytes(Tag::optimizer)));

    // 6. Bytes: parameters twice, gradients once: 3P(N-1)/N.
    world.reset_traffic();
    step(workload.steps());
    const double predicted = 1.5 * all_reduce_bytes(static_cast<int64_t>(p), world.size()), sent = static_cast<double>(world.traffic().bytes_sent);
    comparison.bytes("bytes sent per step", predicted, sent);
    const auto peak = static_cast<int64_t>(static_cast<double>(memory.peak_bytes(Tag::parameters)) - boundary);
    if (process.is_root()) {
      fmt::print("{}", comparison.text());
      fmt::print("  gathered at once: {} at most, bound {} (two units)\n", format_bytes(peak), format_bytes(sharded.two_largest_neighbours_bytes()));
    }
    if (peak > sharded.two_largest_neighbours_bytes()) throw verify_error("ZeRO-3", fmt::format("{} bytes gathered at once, more than two units", peak));
    if (options.verify_only) return;

    // 7. Time.
    int64_t number = workload.steps();
    const Timing timing = time_steps(world, 1, workload.timed_steps(), [&] { step(++number); });
    report_step(process, workload, "zero3", Exposed{timing, {}, 0}, predicted, sent);
  });
}
