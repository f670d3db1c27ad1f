// One optimiser step: ours (one pass over flat buffers) against torch::optim (one operator after another, per tensor), on
// the tensors of a ResNet-18 and of a small gpt. Bytes per second count what the fused kernel must move: 20 per element
// for SGD with momentum, 28 for Adam. Run with OMP_NUM_THREADS=1 to compare one thread with one thread.
#include <torch/optim.h>
#include <benchmark/benchmark.h>
#include "launch/torch.hpp"

#include "models/model.hpp"
#include "train/flat_parameters.hpp"
#include "train/fused.hpp"
#include "train/optimizer.hpp"

namespace manyranks {
namespace {

const char* const workloads[] = {"mlp", "resnet18", "gpt"};

std::shared_ptr<Model> workload(benchmark::State& state) {
  const char* name = workloads[state.range(0)];
  state.SetLabel(name);
  torch::manual_seed(1);
  return make_model(name, usual_shape(name));
}

void count_bytes(benchmark::State& state, int64_t elements, int64_t bytes_each) {
  state.counters["elements"] = static_cast<double>(elements);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * elements * bytes_each);
}

void sgd_ours(benchmark::State& state) {
  auto model = workload(state);
  FlatParameters flat(*model);
  flat.gradients().fill_(1e-3);
  Sgd optimizer(flat.parameters(), flat.gradients(), {.momentum = 0.9, .weight_decay = 1e-4});
  for (auto _ : state) optimizer.step(1e-3);
  count_bytes(state, flat.count(), 20);
}

void sgd_torch(benchmark::State& state) {
  auto model = workload(state);
  FlatParameters flat(*model);  // only to give every parameter a gradient
  flat.gradients().fill_(1e-3);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9).weight_decay(1e-4));
  for (auto _ : state) optimizer.step();
  count_bytes(state, flat.count(), 20);
}

void adam_ours(benchmark::State& state) {
  auto model = workload(state);
  FlatParameters flat(*model);
  flat.gradients().fill_(1e-3);
  Adam optimizer(flat.parameters(), flat.gradients(), {});
  for (auto _ : state) optimizer.step(1e-3);
  count_bytes(state, flat.count(), 28);
}

void adam_torch(benchmark::State& state) {
  auto model = workload(state);
  FlatParameters flat(*model);
  flat.gradients().fill_(1e-3);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  for (auto _ : state) optimizer.step();
  count_bytes(state, flat.count(), 28);
}

BENCHMARK(sgd_ours)->DenseRange(0, 2)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(sgd_torch)->DenseRange(0, 2)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(adam_ours)->DenseRange(0, 2)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(adam_torch)->DenseRange(0, 2)->Unit(benchmark::kMicrosecond)->UseRealTime();

// The two reductions around a step: clipping needs the norm, loss scaling needs unscale and the finite check.
void norm_ours(benchmark::State& state) {
  const torch::Tensor values = torch::randn({state.range(0)});
  for (auto _ : state) benchmark::DoNotOptimize(sum_of_squares(values));
  count_bytes(state, values.numel(), 4);
}

void norm_torch(benchmark::State& state) {
  const torch::Tensor values = torch::randn({state.range(0)});
  for (auto _ : state) benchmark::DoNotOptimize(values.square().sum().item<float>());
  count_bytes(state, values.numel(), 4);
}

void unscale_ours(benchmark::State& state) {
  const torch::Tensor values = torch::randn({state.range(0)});
  for (auto _ : state) benchmark::DoNotOptimize(scale_and_check(values, 1.0));
  count_bytes(state, values.numel(), 8);
}

void unscale_torch(benchmark::State& state) {
  const torch::Tensor values = torch::randn({state.range(0)});
  const torch::Tensor inverse = torch::ones({1});
  torch::Tensor found = torch::zeros({1});
  for (auto _ : state) {
    at::_amp_foreach_non_finite_check_and_unscale_({values}, found, inverse);
    benchmark::DoNotOptimize(found.item<float>());
  }
  count_bytes(state, values.numel(), 8);
}

BENCHMARK(norm_ours)->Arg(1 << 14)->Arg(1 << 24)->UseRealTime();
BENCHMARK(norm_torch)->Arg(1 << 14)->Arg(1 << 24)->UseRealTime();
BENCHMARK(unscale_ours)->Arg(1 << 14)->Arg(1 << 24)->UseRealTime();
BENCHMARK(unscale_torch)->Arg(1 << 14)->Arg(1 << 24)->UseRealTime();

}  // namespace
}  // namespace manyranks

BENCHMARK_MAIN();
