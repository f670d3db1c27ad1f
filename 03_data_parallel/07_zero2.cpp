// ZeRO-2: gradients that nobody keeps whole. Each is summed into its owner's shard while backward runs, and freed.
//
// You learn   how gradients flow through two small buffers by turns; what that costs in memory above the shards: the buffers,
//             and the one gradient that autograd has just made.
// Run it      mpirun -np 2 build/03_data_parallel/07_zero2
//             mpirun -np 4 build/03_data_parallel/07_zero2 --model resnet18 --bucket-mb 4
// You see     4 + 12/N bytes per parameter instead of 16 (fp32 Adam), and the peak of the gradients within its bound:
//               buffers 1.0 MiB for gradients of 1.6 MiB; the largest parameter is 1.5 MiB
// Read next   ../common/parallel/gradient_stream.cpp, then 08_zero3.cpp
#include "workload.hpp"  // Workload, train_serially, verify_model, time_exposed

#include "measure/allocator.hpp"         // CountingAllocator, MemoryTag
#include "measure/table.hpp"             // format_bytes
#include "parallel/gradient_stream.hpp"  // GradientStream, ChunkedRow, ChunkBuffers
#include "parallel/replicate.hpp"        // replicate, check_finite, allocate_shared

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch. From here on every tensor byte is counted.
    Options options("03_data_parallel/07_zero2", "ZeRO-2: optimiser state and gradients in N shards");
    Workload workload(options);
    double bucket_mb = 1;
    options.add("--bucket-mb", bucket_mb, "the two gradient buffers together, MiB").positive();
    process.start(options);
    workload.device = process.device();
    Communicator& world = process.world();
    auto& memory = CountingAllocator::get();

    // 2. Serial reference.
    const Reference reference = train_serially(workload, world, workload.steps());

    // 3. All parameters in one row, last layers first. The row is cut into chunks, and each chunk into N parts: part r of every
    //    chunk is rank r's shard, so that every reduce-scatter gives everybody the same work.
    auto model = workload.make();
    replicate(world, *model);
    auto in_order = trainable_parameters(*model);
    std::reverse(in_order.begin(), in_order.end());
    int64_t count = 0, largest = 0;
    for (const auto& [name, tensor] : in_order) count += tensor.numel(), largest = std::max(largest, tensor.numel());
    const auto bucket_bytes = std::min(4 * count, static_cast<int64_t>(bucket_mb * (1 << 20)));
    const ChunkedRow row(count, bucket_bytes / 2, world.size());
    const torch::Tensor parameters = allocate_shared(world, row.padded(), Tag::parameters);
    int64_t begin = 0;
    for (auto& [name, tensor] : in_order) {
      const torch::NoGradGuard no_grad;
      const torch::Tensor place = view_like(parameters, begin, tensor);
      place.copy_(tensor);
      tensor.set_data(place);
      begin += tensor.numel();
    }

    // 4. My shard of gradients and state; optimisers work on ranges, so one per chunk.
    std::vector<torch::Tensor> chunks, my_parts, my_sums;
    std::vector<std::unique_ptr<Optimizer>> optimizers;
    torch::Tensor shard;
    {
      const MemoryTag tag(Tag::gradients, "gradient shard");
      shard = torch::zeros({row.shard()}, parameters.options());
    }
    for (size_t c = 0; c < row.chunks(); ++c) {
      const MemoryTag tag(Tag::optimizer, "optimiser state");
      chunks.push_back(parameters.narrow(0, row.begin(c), row.size(c)));
      my_parts.push_back(chunks[c].narrow(0, world.rank() * row.shard_size(c), row.shard_size(c)));
      my_sums.push_back(shard.narrow(0, row.shard_begin(c), row.shard_size(c)));
      optimizers.push_back(workload.optimizer_maker()(my_parts[c], my_sums[c]));
    }
    bool communicate = true;
    ChunkBuffers buffers({allocate_shared(world, row.size(0), Tag::buffers), allocate_shared(world, row.size(0), Tag::buffers)});
    GradientStream stream(in_order, row, buffers, [&](size_t chunk, const torch::Tensor& gradients) {
      // The lesson: what arrives is only my part of the sum. The buffer is free again when this is done.
      return communicate ? world.reduce_scatter_async(my_sums[chunk], gradients) : Work();
    });

    const auto step = [&](int64_t number, bool with_communication) {
      communicate = with_communication;
      process.set_step(number);
      const auto [x, y] = workload.samples(number, world.rank());
      {
        const MemoryTag tag(Tag::activations);
        const auto loss = cross_entropy(model->forward(x), y);
        check_finite(loss);
        loss.backward();
      }
      stream.finish();
      buffers.wait_all();
      for (size_t c = 0; c < row.chunks(); ++c) {
        optimizers[c]->step(workload.learning_rate(), 1.0 / world.size());
        if (communicate) world.all_gather(chunks[c], my_parts[c]);
      }
    };

    // 5. Distributed run, then verify.
    for (int64_t i = 0; i < workload.steps(); ++i) step(i, true);
    verify_model(process, *model, reference, workload.steps());

    // 6. Memory at the step boundary: 4 + (4 + 8)/N bytes per parameter with Adam.
    const double p = static_cast<double>(count), n = world.size(), state = workload.optimizer == "adam" ? 8 : 4;
    Comparison comparison;
    comparison.bytes("parameters", 4 * p, static_cast<double>(memory.live_bytes(Tag::parameters)));
    comparison.bytes("gradients", 4 / n * p, static_cast<double>(memory.live_bytes(Tag::gradients)));
    comparison.bytes("optimiser state", state / n * p, static_cast<double>(memory.live_bytes(Tag::optimizer)));
    if (options.verify_only) return;

    // 7. Bytes, time, report.
    world.reset_traffic();
    step(workload.steps(), true);
    const double predicted = all_reduce_bytes(count, world.size()), sent = static_cast<double>(world.traffic().bytes_sent);
    comparison.bytes("bytes sent per step", predicted, sent);
    int64_t number = workload.steps();
    const Exposed exposed = time_exposed(world, workload.timed_steps(), [&](bool with) { step(++number, with); });
    if (process.is_root()) fmt::print("{}  buffers {} for gradients of {}; the largest parameter is {}\n", comparison.text(), format_bytes(memory.live_bytes(Tag::buffers)), format_bytes(4 * count), format_bytes(4 * largest));
    report_step(process, workload, "zero2", exposed, predicted, sent);
  });
}
