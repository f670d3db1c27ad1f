// Worker threads decode ahead; on a GPU, the next batch is copied while this one computes.
//
// You learn   that data for step k+1 can be made during step k, by threads (a fork after MPI_Init or CUDA start is trouble, and
//             threads share memory for free); that pixels must not depend on who made them; that prefetch bounds the memory;
//             and what it takes for a copy to overlap: pinned memory, a second stream, and an event where the two meet.
// Run it      build/01_single_gpu/03_data_loader
//             build/01_single_gpu/03_data_loader --workers 8 --prefetch 4 --model resnet50 --image 224 --batch 128
// You see     the same bits as the loop without workers; then samples/s and the share of time spent waiting for data, for 0, 1, 2
//             workers. Once nothing waits, more of them only take cores from the computation.
// Read next   diff 01_baseline.cpp 03_data_loader.cpp, common/data/loader.cpp, then 04_memory_format.cpp
#include "workload.hpp"  // Workload, Batches, train_plainly, expect_same_training, by_turns, report

#include <torch/optim/adam.h>

#include "parallel/replicate.hpp"  // check_finite

#if defined(MANYRANKS_HAVE_CUDA)
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

using namespace manyranks;

namespace {

// Keeps one batch ahead on the device. On a CPU there is nothing to copy, and it hands on what it gets.
class OnDevice {
 public:
  OnDevice(Batches& batches, torch::Device device) : batches_(batches), device_(device) {}

  TensorBatch next() {
    if (!device_.is_cuda()) return batches_.next();
#if defined(MANYRANKS_HAVE_CUDA)
    if (!ahead_) start_copy();
    const TensorBatch ready = *ahead_;
    const auto compute = c10::cuda::getCurrentCUDAStream(device_.index());
    copied_.block(compute);  // the compute stream waits for the copy; this thread does not
    for (const auto& tensor : {ready.images, ready.labels}) tensor.record_stream(compute);  // not to be reused before compute is done with it
    copied_.synchronize();  // the pinned buffer may be filled again: true since long, the copy was started a step ago
    start_copy();
    return ready;
#else
    throw unavailable_error("copy to " + device_.str(), "built without CUDA");
#endif
  }

 private:
#if defined(MANYRANKS_HAVE_CUDA)
  void start_copy() {
    const TensorBatch host = batches_.next();  // pinned: from pageable memory the driver would copy synchronously
    if (!copy_stream_) copy_stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_.index());
    const c10::cuda::CUDAStreamGuard on_copy_stream(*copy_stream_);
    ahead_ = TensorBatch{host.images.to(device_, /*non_blocking=*/true), host.labels.to(device_, /*non_blocking=*/true)};
    copied_.record(*copy_stream_);
  }
  std::optional<c10::cuda::CUDAStream> copy_stream_;
  at::cuda::CUDAEvent copied_;
  std::optional<TensorBatch> ahead_;
#endif
  Batches& batches_;
  torch::Device device_;
};

struct Trainer {
  Batches batches;
  OnDevice on_device;
  std::shared_ptr<Model> model;
  torch::optim::Adam optimizer;

  Trainer(const Workload& workload, int workers, int prefetch)
      : batches(workload.batches([&] {
          LoaderOptions loading = workload.loading();
          loading.workers = workers, loading.prefetch = prefetch;
          return loading;
        }())),
        on_device(batches, workload.device()), model(workload.make()),
        optimizer(model->parameters(), torch::optim::AdamOptions(workload.learning_rate())) {}

  double step() {
    const auto [x, y] = on_device.next();  // the lesson: it was made, and copied, during the step before
    optimizer.zero_grad();
    const auto loss = cross_entropy(model->forward(x), y);
    check_finite(loss);
    loss.backward();
    optimizer.step();
    return loss.item<double>();
  }
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("01_single_gpu/03_data_loader", "threads that run ahead of the training loop");
    Workload workload(options);
    int most_workers = 2, prefetch = 2;
    options.add("--workers", most_workers, "threads at most").between(1, 256);
    options.add("--prefetch", prefetch, "batches made ahead").between(1, 64);
    process.start(options);
    workload.open(process);

    // 2. Reference: the plain loop.
    const Reference reference = train_plainly(workload, workload.steps());

    // 3. 0, 1, 2, 4 ... workers. Random crops and flips are keyed by (seed, epoch, sample), never by thread.
    std::vector<std::pair<int, std::unique_ptr<Trainer>>> all;
    all.emplace_back(0, std::make_unique<Trainer>(workload, 0, prefetch));
    for (int workers = 1; workers <= most_workers; workers *= 2) all.emplace_back(workers, std::make_unique<Trainer>(workload, workers, prefetch));

    // 4. Verify: the same losses and weights, bit by bit, whoever decoded.
    for (const auto& [workers, trainer] : all) {
      Training training;
      for (int64_t i = 0; i < workload.steps(); ++i) process.set_step(i), training.add(trainer->step(), *trainer->model);
      expect_same_training(fmt::format("{} workers", workers), training, *trainer->model, reference, {});
      trainer->batches.pause();
    }
    fmt::print("  {} steps with 0 to {} workers: the same bits as the plain loop\n", workload.steps(), all.back().first);
    if (options.verify_only) return;

    // 5. Predict: with enough workers a step takes as long as the slower of loading and computing, no longer their sum.
    std::vector<Variant> variants;
    for (const auto& [workers, trainer] : all)
      variants.push_back({fmt::format("{} worker(s)", workers), &trainer->batches, workload.batch(), [trainer = trainer.get()] { trainer->step(); }});
    const auto speeds = by_turns(process, variants, workload.blocks(), workload.samples_per_block());
    const double load = speeds[0].data_share * speeds[0].step.median, compute = speeds[0].step.median - load;

    // 6. Report.
    report(process, workload, variants, speeds);
    fmt::print("  loading {:.1f} ms + computing {:.1f} ms; one worker: max of the two, {:.1f} ms predicted, {:.1f} ms measured\n", 1e3 * load, 1e3 * compute,
               1e3 * std::max(load, compute), 1e3 * speeds[1].step.median);
    workload.close();
  });
}
