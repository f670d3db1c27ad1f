// Horovod's way: an optimiser that exchanges gradients behind the program's back, whatever the order in which they come.
//
// You learn   negotiation (every few milliseconds the ranks agree which gradients are ready everywhere) and tensor fusion (all
//             of those in one all-reduce): no fixed buckets, so ranks may make gradients in different orders; what fp16 on the
//             wire saves and costs; how to read a timeline.
// Run it      mpirun -np 2 build/03_data_parallel/05_horovod_style --cycle-ms 2 --trace timeline.json
//             mpirun -np 2 build/03_data_parallel/05_horovod_style --fp16 --model resnet18
// You see     the same bits as the serial run (with --fp16: nearly), in as many all-reduces as there were cycles:
//               8 gradients in 3.6 fused all-reduces per step
// Read next   ../common/parallel/distributed_optimizer.cpp, then 06_zero1.cpp
#include "workload.hpp"  // Workload, train_serially, verify_model

#include "measure/trace.hpp"                    // Trace
#include "measure/verify.hpp"                   // expect_close
#include "parallel/distributed_optimizer.hpp"   // DistributedOptimizer, FusionOptions
#include "parallel/replicate.hpp"               // check_same_model, check_finite
#include "train/flat_parameters.hpp"            // FlatParameters

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("03_data_parallel/05_horovod_style", "a distributed optimiser with negotiation and tensor fusion");
    Workload workload(options);
    FusionOptions fusion;
    double fusion_mb = 128;
    options.add("--cycle-ms", fusion.cycle_ms, "how often the ranks agree on what is ready").not_negative();
    options.add("--fusion-mb", fusion_mb, "size of the fusion buffer, MiB").positive();
    options.add("--fp16", fusion.fp16, "send half precision: half the bytes, 11 bits of each gradient");
    process.start(options);
    workload.device = process.device();
    fusion.fusion_bytes = static_cast<int64_t>(fusion_mb * (1 << 20));
    Communicator& world = process.world();

    // 2. Serial reference.
    const Reference reference = train_serially(workload, world, workload.steps());

    // 3. The loop of one process, with another optimiser: that is all that Horovod asks for.
    auto model = workload.make();
    check_same_model(world, *model);
    FlatParameters flat(*model);
    Trace trace(process.rank(), process.host());
    DistributedOptimizer optimizer(world, flat, workload.optimizer_maker()(flat.parameters(), flat.gradients()), fusion, &trace);
    const auto step = [&](int64_t number) {
      process.set_step(number);
      const auto [x, y] = workload.samples(number, world.rank());
      flat.zero_grad();
      const auto loss = cross_entropy(model->forward(x), y);
      check_finite(loss);
      const auto span = trace.span("compute", "backward and step");
      loss.backward();
      optimizer.step(workload.learning_rate(), 1.0 / world.size());  // waits for the sums first
    };
    for (int64_t i = 0; i < workload.steps(); ++i) step(i);

    // 4. Verify: bits, or with half precision the direction of training.
    if (fusion.fp16) {
      std::vector<torch::Tensor> parameters;
      for (const auto& [name, tensor] : trainable_parameters(*model)) parameters.push_back(tensor.detach().flatten());
      std::vector<torch::Tensor> expected;
      for (const auto& tensor : reference.parameters) expected.push_back(tensor.flatten());
      expect_close("parameters, gradients sent as fp16", torch::cat(parameters), torch::cat(expected), 5e-2);
      const double distance = ((torch::cat(parameters) - torch::cat(expected)).norm() / torch::cat(expected).norm()).item<double>();
      if (process.is_root()) fmt::print("  parameters agree with the serial run's to {:.1e} (norm-relative) after {} steps on {} rank(s)\n", distance, workload.steps(), world.size());
    } else {
      verify_model(process, *model, reference, workload.steps());
    }
    if (process.is_root())
      fmt::print("  {} gradients in {:.1f} fused all-reduces per step\n", flat.slots().size(), static_cast<double>(optimizer.fused_calls()) / static_cast<double>(workload.steps()));

    if (options.verify_only) return;

    // 5. Bytes: half of them with fp16. The marks of each cycle come on top.
    Comparison comparison;
    const int64_t before = optimizer.traffic().bytes_sent;
    step(workload.steps());
    comparison.bytes("bytes sent per step", all_reduce_bytes(flat.count(), world.size()) / (fusion.fp16 ? 2 : 1), static_cast<double>(optimizer.traffic().bytes_sent - before));
    if (process.is_root()) fmt::print("{}", comparison.text());
    if (!options.trace.empty()) {
      const auto parts = process.rendezvous().all_gather(trace.to_json_events());
      if (process.is_root()) write_trace(options.trace, parts);
    }
  });
}
