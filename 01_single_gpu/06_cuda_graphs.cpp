// Record a step once, replay it with one launch: for when the CPU cannot keep the GPU busy.
//
// You learn   that every operator costs the CPU some microseconds to launch; a small model on a fast GPU waits for them. A CUDA graph
//             records the kernels and their arguments, and replays all of them at once. What it asks for: the same shapes and addresses in
//             every step, no look at a result on the way, no random decision on the CPU. What changes (Adam's step count, a
//             learning rate) must live in device memory or stay outside, as the optimiser does here.
// Run it      build/01_single_gpu/06_cuda_graphs --batch 8
// You see     on a GPU: replayed losses equal to the plain ones, then both measured by turns. Without a GPU there is nothing to record:
//               manyranks: skipped (gpu): CUDA graphs need a GPU; this machine offers cpu     (exit 77)
// Read next   06_cuda_graphs.hpp, then 07_ladder.cpp
#include "06_cuda_graphs.hpp"  // GraphedStep

#include "measure/verify.hpp"         // expect_close
#include "train/flat_parameters.hpp"  // FlatParameters
#include "train/optimizer.hpp"        // Adam
#include "workload.hpp"               // Workload, Batches, by_turns, report

using namespace manyranks;

namespace {

// Weights, gradients and optimiser state at fixed addresses, as a graph needs them.
struct Trainer {
  Batches batches;
  std::shared_ptr<Model> model;
  FlatParameters flat;
  Adam optimizer;

  explicit Trainer(const Workload& workload)
      : batches(workload.batches()), model(workload.make()), flat(*model), optimizer(flat.parameters(), flat.gradients(), {}) {}

  torch::Tensor forward_backward(const torch::Tensor& x, const torch::Tensor& y) {
    const auto loss = cross_entropy(model->forward(x), y);
    loss.backward();
    return loss;
  }
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("01_single_gpu/06_cuda_graphs", "record a step once, replay it with one launch");
    Workload workload(options);
    process.start(options);
    if (!process.device().is_cuda()) throw Skip("gpu", "CUDA graphs need a GPU; this machine offers " + process.device().str());
    workload.open(process);

#if defined(MANYRANKS_HAVE_CUDA)
    // 2. Reference: the same steps, launched one operator at a time.
    Trainer plain(workload), graphed(workload);
    const auto plain_step = [&] {
      const auto [images, labels] = plain.batches.next();
      plain.flat.zero_grad();
      const auto loss = plain.forward_backward(images.to(workload.device()), labels.to(workload.device()));
      plain.optimizer.step(workload.learning_rate());
      return loss;
    };

    // 3. Record. The plain steps before the capture move running statistics, so those are put back.
    Batches example = workload.batches();
    const auto [images, labels] = example.next();
    std::vector<torch::Tensor> statistics;
    for (const auto& buffer : graphed.model->buffers()) statistics.push_back(buffer.clone());
    GraphedStep graph(images.to(workload.device()), labels.to(workload.device()), [&](const torch::Tensor& x, const torch::Tensor& y) { return graphed.forward_backward(x, y); });
    for (size_t i = 0; i < statistics.size(); ++i) graphed.model->buffers()[i].copy_(statistics[i]);
    const auto graphed_step = [&] {
      const auto [x, y] = graphed.batches.next();
      graphed.flat.zero_grad();
      const auto& loss = graph.replay(x, y);
      graphed.optimizer.step(workload.learning_rate());
      return loss;
    };

    // 4. Verify: the same kernels on the same numbers; where cuDNN sums with atomics the last bits may differ.
    std::vector<double> expected, got;
    for (int64_t i = 0; i < workload.steps(); ++i) {
      process.set_step(i);
      expected.push_back(plain_step().item<double>());
      got.push_back(graphed_step().item<double>());
    }
    expect_close("loss", torch::tensor(got, torch::kDouble), torch::tensor(expected, torch::kDouble), 1e-4);
    fmt::print("  {} steps replayed: losses equal to those of plain launches within 1e-4\n", got.size());
    if (options.verify_only) return;

    // 5. Time, and report.
    const std::vector<Variant> variants{{"plain launches", &plain.batches, workload.batch(), [&] { plain_step(); }}, {"graph", &graphed.batches, workload.batch(), [&] { graphed_step(); }}};
    report(process, workload, variants, by_turns(process, variants, workload.blocks(), workload.samples_per_block()));
#endif
    workload.close();
  });
}
