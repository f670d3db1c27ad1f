// One pass over memory for the whole optimiser, and your first CUDA kernel.
//
// You learn   that an optimiser does next to no arithmetic: it is limited by memory, so what counts is how often memory is
//             crossed. torch::optim makes about a dozen operators per parameter, each a pass (on a GPU, a launch) of its own; a
//             fused kernel reads and writes everything once: 28 bytes per element for Adam. That asks for one flat buffer for all
//             parameters, and one for all gradients. And that one functor serves CPU and GPU: same arithmetic, same bits.
// Run it      build/01_single_gpu/05_fused_optimizer
//             build/01_single_gpu/05_fused_optimizer --model resnet18
// You see     training that agrees with torch::optim's; the vectorised kernel bitwise equal to a plain loop over the functor (and on
//             a GPU, the kernels of 05_fused_optimizer.cu bitwise equal to both); the time of a step against that of moving 28
//             bytes per element.
// Read next   05_fused_optimizer.cu, common/kernels/functors.hpp, common/train/flat_parameters.hpp; then 06_cuda_graphs.cpp
#include "workload.hpp"  // Workload, Batches, train_plainly, expect_same_training, by_turns, report

#include <torch/optim/adam.h>

#include "05_fused_optimizer.hpp"     // the kernels by hand
#include "measure/statistics.hpp"     // median
#include "measure/table.hpp"          // format_seconds
#include "measure/verify.hpp"         // expect_equal_bits, expect_close
#include "parallel/replicate.hpp"     // check_finite
#include "train/flat_parameters.hpp"  // FlatParameters
#include "train/fused.hpp"            // fused_adam, sum_of_squares
#include "train/optimizer.hpp"        // Adam

#if defined(MANYRANKS_HAVE_CUDA)
#include <c10/cuda/CUDAStream.h>
#endif

using namespace manyranks;

namespace {

struct AdamState {
  torch::Tensor parameter, gradient, mean, square;
  AdamState(int64_t count, torch::Device device) {
    torch::manual_seed(7);
    parameter = torch::randn({count}).to(device), gradient = torch::randn({count}).to(device);
    mean = torch::randn({count}).to(device), square = torch::rand({count}).to(device);
  }
};

// The functor in the plainest loop there is: what every faster version must equal, bit by bit.
void adam_by_the_book(const kernels::Adam& step, AdamState& state) {
  float *p = state.parameter.data_ptr<float>(), *m = state.mean.data_ptr<float>(), *s = state.square.data_ptr<float>();
  const float* g = state.gradient.data_ptr<float>();
  for (int64_t i = 0; i < state.parameter.numel(); ++i) step(p[i], g[i], m[i], s[i]);
}

void expect_same(const std::string& name, const AdamState& got, const AdamState& expected) {
  for (const auto& [what, a, b] : {std::tuple{"parameter", got.parameter, expected.parameter}, {"mean", got.mean, expected.mean}, {"square", got.square, expected.square}})
    expect_equal_bits(fmt::format("{} of {}", what, name), a.cpu(), b);
}

#if defined(MANYRANKS_HAVE_CUDA)
void check_kernels_by_hand(const kernels::Adam& step, const AdamState& expected, torch::Device device) {
  AdamState state(expected.parameter.numel(), device);
  void* stream = c10::cuda::getCurrentCUDAStream(device.index()).stream();
  const auto f = [](const torch::Tensor& tensor) { return tensor.data_ptr<float>(); };
  lesson::adam_on_gpu(step, f(state.parameter), f(state.gradient), f(state.mean), f(state.square), state.parameter.numel(), stream);
  expect_same("the GPU kernel", state, expected);
  auto sums = torch::zeros({2}, torch::TensorOptions(torch::kDouble).device(device));
  lesson::sum_of_squares_by_hand(f(state.gradient), state.gradient.numel(), sums.data_ptr<double>(), stream);
  lesson::sum_of_squares_by_cub(f(state.gradient), state.gradient.numel(), sums.data_ptr<double>() + 1, stream);
  expect_close("sums of squares by hand and by CUB", sums.cpu(), torch::full({2}, sum_of_squares(expected.gradient), torch::kDouble), 1e-12);
}
#endif

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("01_single_gpu/05_fused_optimizer", "one pass over flat buffers");
    Workload workload(options);
    process.start(options);
    workload.open(process);

    // 2. Verify the kernel: against the plain loop, bit by bit, with a tail behind the last whole vector.
    const kernels::Adam adam = kernels::adam_at_step({.learning_rate = 1e-3}, 3);
    AdamState plain(100003, torch::kCPU), fused(100003, workload.device());
    adam_by_the_book(adam, plain);
    fused_adam(adam, fused.parameter, fused.gradient, fused.mean, fused.square);
    expect_same("the fused kernel", fused, plain);
    std::string by_hand = "compiled, not run: no GPU in use";
#if defined(MANYRANKS_HAVE_CUDA)
    if (workload.device().is_cuda()) check_kernels_by_hand(adam, plain, workload.device()), by_hand = "the same bits";
#else
    by_hand = "not compiled: no CUDA toolkit";
#endif
    fmt::print("  fused kernel: the same bits as a plain loop over the functor; kernels of 05_fused_optimizer.cu: {}\n", by_hand);

    // 3. Reference: the plain loop, with torch::optim.
    const Reference reference = train_plainly(workload, workload.steps());

    // 4. Two trainers: parameter by parameter, and one flat buffer. From here on zero_grad() is the buffer's.
    LoaderOptions loading = workload.loading();
    loading.workers = 1;
    Batches batches_a = workload.batches(loading), batches_b = workload.batches(loading);
    auto model_a = workload.make(), model_b = workload.make();
    torch::optim::Adam per_tensor(model_a->parameters(), torch::optim::AdamOptions(workload.learning_rate()));
    FlatParameters flat(*model_b);
    Adam in_one_pass(flat.parameters(), flat.gradients(), {});
    const auto backward = [&](Batches& batches, Model& model) {
      const auto [images, labels] = batches.next();
      const auto loss = cross_entropy(model.forward(images.to(workload.device())), labels.to(workload.device()));
      check_finite(loss);
      loss.backward();
      return loss.item<double>();
    };
    const auto step_a = [&] {
      per_tensor.zero_grad();
      const double loss = backward(batches_a, *model_a);
      per_tensor.step();
      return loss;
    };
    const auto step_b = [&] {
      flat.zero_grad();
      const double loss = backward(batches_b, *model_b);
      in_one_pass.step(workload.learning_rate());  // the lesson
      return loss;
    };

    // 5. Run, then verify. The same formula, rounded in another order.
    Training training_a, training_b;
    for (int64_t i = 0; i < workload.steps(); ++i) process.set_step(i), training_a.add(step_a(), *model_a), training_b.add(step_b(), *model_b);
    expect_same_training("torch::optim", training_a, *model_a, reference, {});
    const Difference off = expect_same_training("the fused optimiser", training_b, *model_b, reference, {1e-4, 1e-6, 1e-2});
    fmt::print("  {} steps; off torch::optim's by {:.0e} (losses), {:.0e} (first gradient), {:.0e} (updates)\n", workload.steps(), off.losses, off.gradient, off.updates);
    if (options.verify_only) return;

    // 6. The optimiser alone: predicted from the bytes, measured by turns.
    const auto from = torch::zeros({flat.count()}, workload.device());
    auto to = torch::zeros_like(from);
    std::vector<double> copy, slow, fast;
    for (int i = 0; i < (options.quick ? 3 : 41); ++i)
      for (auto* samples : {&copy, &slow, &fast}) {
        finish_device_work();
        const WallTimer timer;
        if (samples == &copy) to.copy_(from);
        if (samples == &slow) per_tensor.step();
        if (samples == &fast) in_one_pass.step(0.0);
        finish_device_work();
        samples->push_back(timer.seconds());
      }
    const double predicted = median(copy) / 8 * 28;  // a copy moves 8 bytes per element
    fmt::print("  {} parameters: torch::optim {}, fused {}; 28 bytes per parameter at the speed of a copy: {} predicted\n", flat.count(), format_seconds(median(slow)),
               format_seconds(median(fast)), format_seconds(predicted));

    // 7. The whole step, and report.
    const std::vector<Variant> variants{{"torch::optim", &batches_a, workload.batch(), [&] { step_a(); }}, {"fused", &batches_b, workload.batch(), [&] { step_b(); }}};
    report(process, workload, variants, by_turns(process, variants, workload.blocks(), workload.samples_per_block()));
    workload.close();
  });
}
