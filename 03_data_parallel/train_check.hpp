// What 11_train does to one batch, and the check that its strategy does the same as one process that sees everything.
#pragma once

#include "workload.hpp"  // expect_same

#include "data/torch_loader.hpp"         // TorchLoader, DistributedSampler
#include "measure/verify.hpp"            // expect_close
#include "parallel/replicate.hpp"        // check_finite
#include "parallel/scaled_step.hpp"      // ScaledStep
#include "parallel/strategy.hpp"         // make_strategy
#include "parallel/sync_batch_norm.hpp"  // SyncBatchNorm
#include "train/amp.hpp"                 // Amp, Autocast
#include "train/flat_parameters.hpp"

namespace manyranks {

// PyTorch starts with 65536 for a mean; ours is a sum over the batch. --loss-scale says otherwise.
inline constexpr ScalerOptions scaling{.initial = 512};

struct Settings {
  std::string model = "resnet18", strategy = "ddp", checkpoint, tensorboard, monitor;
  int64_t epochs = 2, stop_after = 0, train_size = 4000, test_size = 1000;
  double base_rate = 0.1;  // for a batch of 256
  int workers = 1;
  bool resume = false, sync_batchnorm = false;
};

// Forward and backward of this rank's part of a batch. The loss is a sum, so that a smaller part weighs less; step() divides by
// the samples of all. With --amp fp16 it is also scaled. A rank without samples still joins the exchange: through follow(), or,
// where batch normalisation meets in every layer, by a forward pass of nothing.
inline double backward(Strategy& strategy, const ScaledStep& scaled, const Amp& amp, const torch::Tensor& images, const torch::Tensor& labels, torch::Device device, bool sync_batchnorm) {
  const int64_t mine = labels.numel();
  if (mine == 0 && !sync_batchnorm) {
    strategy.follow();
    return 0;
  }
  torch::Tensor loss;
  {
    const Autocast autocast(amp, device.type());
    const auto output = strategy.forward(images.to(device));
    loss = mine ? cross_entropy(output, labels.to(device)) * static_cast<double>(mine) : output.sum().to(torch::kFloat);
  }
  check_finite(loss);
  scaled.scale(loss).backward();
  return loss.item<double>();
}

// Two steps with the strategy, and the same by one process that sees every rank's samples, part by part in rank order. With
// synchronised batch normalisation one step, and there all samples as one batch: nearly the same numbers, not the same bits, and a
// second step would make the difference large (a ReLU that flips). A step that overflows is skipped by both, as in training, and the
// next batch taken in its place.
inline std::string verify(Communicator& world, const Settings& settings, const Amp& amp, const ModelShape& shape, torch::Device device, uint64_t seed, const MakeOptimizer& make_optimizer,
                   const std::shared_ptr<const Dataset>& data, LoaderOptions loading) {
  loading.workers = 0;
  const auto make = [&] {
    torch::manual_seed(seed);
    auto model = make_model(settings.model, shape);
    model->to(device);
    model->train();
    return model;
  };
  auto model = make(), twin = make();
  const auto sync = settings.sync_batchnorm ? std::make_unique<SyncBatchNorm>(world, *model) : nullptr;
  ScaledStep scaled(world, amp), twin_scaled(world, amp);
  const auto strategy = make_strategy(settings.strategy, world, *model, {scaled.wrap(make_optimizer)});
  FlatParameters flat(*twin);
  const auto optimizer = twin_scaled.wrap(make_optimizer)(flat.parameters(), flat.gradients());
  const auto twin_backward = [&](const torch::Tensor& x, const torch::Tensor& y) {
    torch::Tensor loss;
    {
      const Autocast autocast(amp, device.type());
      loss = cross_entropy(twin->forward(x), y) * static_cast<double>(y.numel());
    }
    twin_scaled.scale(loss).backward();
  };
  const auto start = flat.parameters().clone();
  std::vector<std::unique_ptr<TorchLoader>> loaders;
  for (int r = 0; r < world.size(); ++r) {
    loaders.push_back(std::make_unique<TorchLoader>(data, loading));
    loaders.back()->start(DistributedSampler(data->size(), r, world.size(), {seed}));
  }
  int64_t smallest = loading.batch;
  const int64_t wanted_steps = settings.sync_batchnorm ? 1 : 2;
  int64_t steps = 0;
  for (int64_t b = 0; b < loaders[0]->batches() && steps < wanted_steps; ++b) {
    int64_t all = 0;
    torch::Tensor sum;
    std::vector<torch::Tensor> images, labels;
    for (int r = 0; r < world.size(); ++r) {
      const auto part = loaders[r]->next();
      if (r == world.rank()) backward(*strategy, scaled, amp, part->images, part->labels, device, settings.sync_batchnorm);
      const int64_t n = part->labels.numel();
      all += n;
      if (n == 0) continue;
      smallest = std::min(smallest, n);
      images.push_back(part->images.to(device, /*non_blocking=*/false, /*copy=*/true)), labels.push_back(part->labels.to(device, false, true));
      if (settings.sync_batchnorm) continue;
      flat.zero_grad();
      twin_backward(images.back(), labels.back());
      sum = sum.defined() ? sum.add_(flat.gradients()) : flat.gradients().clone();
    }
    if (settings.sync_batchnorm) {
      flat.zero_grad();
      twin_backward(torch::cat(images), torch::cat(labels));
    } else {
      flat.gradients().copy_(sum);
    }
    optimizer->step(0.01, 1.0 / static_cast<double>(all));
    strategy->step(0.01, 1.0 / static_cast<double>(all));
    if (scaled.stepped() != twin_scaled.stepped()) throw verify_error("loss scale", "the ranks and the one process disagree whether a step overflowed");
    steps += twin_scaled.stepped();
  }
  if (steps == 0) throw verify_error("verification", fmt::format("every step overflowed, down to a loss scale of {:g}: skipped steps show nothing", twin_scaled.scaler().scale()), "a smaller --loss-scale");
  const auto got = strategy->gather_parameters();
  std::vector<torch::Tensor> expected;
  for (const auto& [name, tensor] : trainable_parameters(*twin)) expected.push_back(tensor.detach());
  // A batch of one takes another path through LibTorch, whose last bits depend on where in memory the weights lie.
  if (!settings.sync_batchnorm) return expect_same(sums_in_rank_order(world) && smallest > 1, "parameter", got, expected) + fmt::format(" after {} steps", steps);
  // What changed, not what was there: a step moves parameters by little. Half precision rounds each activation to 8 or 11 bits, and batch
  // norm over a handful of samples magnifies that: 0.2 was seen in bf16, 0.09 in fp16. Without one of two ranks' gradients it is 0.68.
  std::vector<torch::Tensor> rows;
  for (const auto& tensor : got) rows.push_back(tensor.flatten());
  const torch::Tensor change = torch::cat(rows) - start, wanted = flat.parameters() - start;
  expect_close("change of the parameters in a step, against one batch of all samples", change, wanted, amp.on() ? 0.35 : 2e-2);
  return fmt::format("changed in a step as in one process with one batch of all samples, to {:.0e} (norm-relative)", ((change - wanted).norm() / wanted.norm()).item<double>());
}

}  // namespace manyranks
