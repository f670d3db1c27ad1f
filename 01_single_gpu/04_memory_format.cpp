// channels_last: the same numbers in another order, and the convolutions run faster.
//
// You learn   that (N, C, H, W) says which index means what, not how the numbers lie. A convolution multiplies all channels of a
//             pixel with all channels of a tap: with the channels side by side (NHWC) these are contiguous vectors, and kernels
//             need not reorder their input first. The loader can write that order at no cost: it is the one JPEG decodes to.
// Run it      build/01_single_gpu/04_memory_format
//             build/01_single_gpu/04_memory_format --model resnet18
// You see     losses equal within rounding (sums are made in another order), then three variants, measured by turns: NCHW; the
//             model in NHWC with images still in NCHW, converted in every step; and both in NHWC.
// Read next   diff 03_data_loader.cpp 04_memory_format.cpp, then 05_fused_optimizer.cpp
#include "workload.hpp"  // Workload, Batches, train_plainly, expect_same_training, by_turns, report

#include <torch/optim/adam.h>

#include "models/memory_format.hpp"  // to_channels_last
#include "parallel/replicate.hpp"    // check_finite

using namespace manyranks;

namespace {

struct Trainer {
  Batches batches;
  std::shared_ptr<Model> model;
  torch::optim::Adam optimizer;
  torch::Device device;
  bool convert;  // to NHWC on the way into the model

  Trainer(const Workload& workload, Layout images, bool model_nhwc)
      : batches(workload.batches([&] {
          LoaderOptions loading = workload.loading();
          loading.workers = 1, loading.layout = images;
          return loading;
        }())),
        model(workload.make()), optimizer(model->parameters(), torch::optim::AdamOptions(workload.learning_rate())),
        device(workload.device()), convert(model_nhwc && images == Layout::chw) {
    if (model_nhwc) to_channels_last(*model);
  }

  double step() {
    const auto [images, labels] = batches.next();
    auto x = images.to(device);
    const auto y = labels.to(device);
    // The lesson: strides (HWC, 1, WC, C) instead of (CHW, HW, W, 1). Operators look at the strides and pick their kernels.
    if (convert) x = x.contiguous(torch::MemoryFormat::ChannelsLast);
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
    Options options("01_single_gpu/04_memory_format", "the channels of a pixel side by side");
    Workload workload(options);
    process.start(options);
    workload.open(process);

    // 2. Reference: the plain loop, in NCHW.
    const Reference reference = train_plainly(workload, workload.steps());

    // 3. Three ways to hold the same numbers.
    Trainer planes(workload, Layout::chw, false), converted(workload, Layout::chw, true), pixels(workload, Layout::hwc, true);
    const std::vector<std::pair<std::string, Trainer*>> all{{"NCHW", &planes}, {"NHWC, images converted", &converted}, {"NHWC", &pixels}};

    // 4. Verify. NCHW with a worker must give the bits of the plain loop. NHWC may add in another order and round differently.
    for (const auto& [name, trainer] : all) {
      Training training;
      for (int64_t i = 0; i < workload.steps(); ++i) process.set_step(i), training.add(trainer->step(), *trainer->model);
      if (trainer != &planes)  // the numbers would be right without it, too
        for (const auto& parameter : trainer->model->parameters())
          if (parameter.dim() == 4 && !parameter.is_contiguous(torch::MemoryFormat::ChannelsLast)) throw verify_error(name, "a weight still lies in NCHW order");
      const Difference limit = trainer == &planes ? Difference{} : Difference{5e-3, workload.is_sensitive() ? 3e-2 : 1e-4, 0.5};
      const Difference off = expect_same_training(name, training, *trainer->model, reference, limit);
      fmt::print("  {}: {} steps; off the plain loop's by {:.0e} (losses), {:.0e} (first gradient), {:.0e} (updates)\n", name, workload.steps(), off.losses, off.gradient, off.updates);
    }
    if (options.verify_only) return;

    // 5. Time, and report.
    std::vector<Variant> variants;
    for (const auto& [name, trainer] : all) variants.push_back({name, &trainer->batches, workload.batch(), [trainer = trainer] { trainer->step(); }});
    report(process, workload, variants, by_turns(process, variants, workload.blocks(), workload.samples_per_block()));
    workload.close();
  });
}
