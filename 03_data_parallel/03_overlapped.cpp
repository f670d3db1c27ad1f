// Communication while backward still runs: a bucket of gradients is all-reduced as soon as it is full.
//
// You learn   how autograd hooks tell when a gradient is final; why buckets follow the order of backward (last layers first)
//             and are rebuilt after the first step; why all ranks must start them in one order; when overlap gains nothing:
//             on cores that are all busy computing, the all-reduce takes its time from backward.
// Run it      mpirun -np 2 build/03_data_parallel/03_overlapped --model resnet18 --trace overlap.json
//             mpirun -np 4 build/03_data_parallel/03_overlapped --bucket-mb 1 --model resnet18
// You see     the same bits and bytes as before, in a few calls, most of them started before backward ends:
//               2 of 2 buckets started before backward ended; the first after 14% of it
// Read next   ../common/parallel/gradient_buckets.cpp, then 04_no_sync.cpp
#include "workload.hpp"  // Workload, train_serially, verify_model, time_exposed

#include "measure/trace.hpp"              // Trace
#include "parallel/gradient_buckets.hpp"  // GradientBuckets
#include "parallel/replicate.hpp"         // check_finite

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("03_data_parallel/03_overlapped", "all-reduces that start during backward, bucket by bucket");
    Workload workload(options);
    double bucket_mb = 25, first_bucket_mb = 1;
    options.add("--bucket-mb", bucket_mb, "size of a bucket, MiB").positive();
    options.add("--first-bucket-mb", first_bucket_mb, "size of the first: small, so that communication starts early");
    process.start(options);
    workload.device = process.device();
    Communicator& world = process.world();

    // 2. Serial reference: one process that sees every rank's samples, in rank order.
    const Reference reference = train_serially(workload, world, workload.steps());

    // 3. The same model everywhere. Behind each parameter a hook copies its gradient into a bucket; a full bucket comes here.
    auto model = workload.make();
    Trace trace(process.rank(), process.host());
    bool communicate = true;
    std::vector<double> started;  // when each bucket of this step was started
    struct Flight {
      size_t bucket;
      double start;
      Work work;
    };
    std::vector<Flight> flying;
    const auto land = [&] {  // into the trace: until it was first seen to be done
      std::erase_if(flying, [&](const Flight& flight) {
        if (flight.work.done()) trace.complete("all-reduce", fmt::format("bucket {}", flight.bucket), flight.start, trace.now_s());
        return flight.work.done();
      });
    };
    const auto bytes = [](double mb) { return static_cast<int64_t>(mb * (1 << 20)); };
    GradientBuckets buckets(world, *model, {bytes(std::min(first_bucket_mb, bucket_mb)), bytes(bucket_mb)}, [&](const GradientBuckets::Bucket& bucket) {
      started.push_back(trace.now_s());
      land();
      if (!communicate) return Work();
      // The lesson: this returns at once, and backward goes on. Only the last bucket finds nothing left to hide behind.
      Work work;
      if (!bucket.last) work = world.all_reduce_async(bucket.gradients);
      if (bucket.last) world.all_reduce(bucket.gradients);
      flying.push_back({bucket.index, started.back(), work});
      return work;
    });
    auto optimizer = workload.optimizer_maker()(buckets.parameters(), buckets.gradients());

    double backward_start = 0, backward_end = 0;
    const auto step = [&](int64_t number, bool with_communication) {
      communicate = with_communication;
      started.clear();
      process.set_step(number);
      const auto [x, y] = workload.samples(number, world.rank());
      buckets.zero_grad();
      const auto loss = cross_entropy(model->forward(x), y);
      check_finite(loss);
      backward_start = trace.now_s();
      loss.backward();
      backward_end = trace.now_s();
      trace.complete("compute", "backward", backward_start, backward_end);
      const auto span = trace.span("compute", "finish, optimiser");
      land();
      buckets.finish();  // starts what is left (parameters that were not used), and waits
      land();
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
    const double predicted = all_reduce_bytes(buckets.gradients().numel(), world.size());
    const auto early = std::count_if(started.begin(), started.end(), [&](double at) { return at < backward_end; });
    const double first_at = (started.front() - backward_start) / (backward_end - backward_start);
    Comparison comparison;
    comparison.bytes("bytes sent per step", predicted, static_cast<double>(traffic.bytes_sent));
    comparison.count("all-reduces per step", static_cast<double>(buckets.size()), static_cast<double>(traffic.calls));

    // 6. Time, and report.
    int64_t number = workload.steps();
    const Exposed exposed = time_exposed(world, workload.timed_steps(), [&](bool communicate) { step(++number, communicate); });
    if (process.is_root()) {
      fmt::print("{}", comparison.text());
      fmt::print("  {} of {} buckets started before backward ended; the first after {:.0f}% of it\n", early, buckets.size(), 100 * first_at);
    }
    if (!options.trace.empty()) {
      const auto parts = process.rendezvous().all_gather(trace.to_json_events());
      if (process.is_root()) write_trace(options.trace, parts);
    }
    report_step(process, workload, "overlapped", exposed, predicted, static_cast<double>(traffic.bytes_sent));
  });
}
