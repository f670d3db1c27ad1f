// Gradient accumulation: several small batches, one exchange.
//
// You learn   how to train with a batch that does not fit in memory, or over a network that is too slow for every batch:
//             gradients of the first k-1 microbatches only add up in the buckets; the last one sends the sum.
// Run it      mpirun -np 2 build/03_data_parallel/04_no_sync --microbatches 4
//             mpirun -np 4 build/03_data_parallel/04_no_sync --microbatches 8 --model gpt
// You see     1/k of the bytes per sample, and the same step as one large batch, up to rounding:
//               gradients and parameters equal the serial run's, bit by bit, after 20 steps on 2 rank(s)
//               one batch of 128 per rank instead of 4 x 32: parameters agree to 1.1e-06 (norm-relative)
// Read next   06_zero1.cpp
#include "workload.hpp"  // Workload, train_serially, verify_model, time_exposed

#include "measure/verify.hpp"             // expect_close
#include "parallel/gradient_buckets.hpp"  // GradientBuckets, NoSync
#include "parallel/replicate.hpp"         // check_finite, trainable_parameters

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("03_data_parallel/04_no_sync", "gradient accumulation: k microbatches, one exchange");
    Workload workload(options);
    int64_t microbatches = 4;
    options.add("--microbatches", microbatches, "batches between two exchanges").positive();
    process.start(options);
    workload.device = process.device();
    Communicator& world = process.world();

    // 2. Serial reference: each rank's microbatches in turn, then the ranks' sums in rank order.
    const Reference reference = train_serially(workload, world, workload.steps(), microbatches);

    // 3. As 03_overlapped. What is new stands in step().
    auto model = workload.make();
    GradientBuckets buckets(world, *model, {}, [&](const GradientBuckets::Bucket& bucket) {
      if (!bucket.last) return world.all_reduce_async(bucket.gradients);
      world.all_reduce(bucket.gradients);
      return Work();
    });
    auto optimizer = workload.optimizer_maker()(buckets.parameters(), buckets.gradients());

    const auto backward = [&](int64_t number, int64_t microbatch) {
      const auto [x, y] = workload.samples(number, world.rank(), microbatch);
      const auto loss = cross_entropy(model->forward(x), y);
      check_finite(loss);
      loss.backward();
    };
    const auto step = [&](int64_t number, bool accumulate) {
      process.set_step(number);
      buckets.zero_grad();
      {
        // The lesson: hooks fire for every microbatch, but start nothing while this lives.
        const GradientBuckets::NoSync no_sync(buckets);
        for (int64_t m = 0; accumulate && m + 1 < microbatches; ++m) backward(number, m);
      }
      backward(number, accumulate ? microbatches - 1 : 0);
      buckets.finish();
      optimizer->step(workload.learning_rate(), 1.0 / static_cast<double>(world.size() * (accumulate ? microbatches : 1)));
    };

    // 4. Distributed run, then verify: bits against the same order of additions.
    for (int64_t i = 0; i < workload.steps(); ++i) step(i, true);
    verify_model(process, *model, reference, workload.steps());

    // 5. Against one large batch: the same mean, added up inside a matrix product instead, so only nearly the same bits. Batch
    //    normalisation would see other statistics: another model, not another rounding.
    if (workload.kind == "mlp" || workload.kind == "convnet" || workload.kind == "gpt") {
      const auto gradient_of = [&](bool large) {
        auto twin = workload.make();
        std::vector<torch::Tensor> xs, ys;
        for (int64_t m = 0; m < microbatches; ++m) {
          const auto [x, y] = workload.samples(0, world.rank(), m);
          if (!large) (cross_entropy(twin->forward(x), y) / microbatches).backward();
          xs.push_back(x), ys.push_back(y);
        }
        if (large) cross_entropy(twin->forward(torch::cat(xs)), torch::cat(ys)).backward();
        std::vector<torch::Tensor> rows;
        for (const auto& [name, tensor] : trainable_parameters(*twin)) rows.push_back(tensor.grad().flatten());
        return torch::cat(rows);
      };
      const auto small = gradient_of(false), large = gradient_of(true);
      expect_close("accumulated gradient against one large batch", small, large, 1e-5);
      const double distance = ((small - large).norm() / large.norm()).item<double>();
      if (process.is_root()) fmt::print("  one batch of {} instead of {} x {}: the gradient agrees to {:.1e} (norm-relative)\n", microbatches * workload.batch_size(), microbatches, workload.batch_size(), distance);
    }
    if (options.verify_only) return;

    // 6. Bytes for the same samples: k steps of one batch, against one step of k microbatches.
    world.reset_traffic();
    for (int64_t m = 0; m < microbatches; ++m) step(workload.steps() + m, false);
    const double each_time = static_cast<double>(world.traffic().bytes_sent);
    world.reset_traffic();
    step(workload.steps(), true);
    const double once = static_cast<double>(world.traffic().bytes_sent);
    const double predicted = all_reduce_bytes(buckets.gradients().numel(), world.size());
    Comparison comparison;
    comparison.bytes(fmt::format("bytes sent, {} batches, exchanged each time", microbatches), predicted * static_cast<double>(microbatches), each_time);
    comparison.bytes(fmt::format("bytes sent, {} batches, exchanged once", microbatches), predicted, once);
    if (process.is_root()) fmt::print("{}", comparison.text());
  });
}
