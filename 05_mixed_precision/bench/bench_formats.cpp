// Conversions, and what lies between backward and the step: by hand, by LibTorch, fused and operator by operator. One thread: OMP_NUM_THREADS=1.
#include <benchmark/benchmark.h>
#include "launch/torch.hpp"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_fused_adam.h>

#include <cmath>

#include "formats.hpp"
#include "train/fused.hpp"
#include "train/guarded.hpp"

namespace manyranks {
namespace {

constexpr int64_t count = 1 << 20;
const Format* const formats[] = {&fp16, &bf16, &fp8_e4m3, &fp8_e5m2};
const torch::Dtype dtypes[] = {torch::kHalf, torch::kBFloat16, torch::kFloat8_e4m3fn, torch::kFloat8_e5m2};

void count_elements(benchmark::State& state, int64_t bytes_each) {
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * count);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * count * bytes_each);
}

void encode_by_hand(benchmark::State& state) {
  const Format& format = *formats[state.range(0)];
  const auto values = torch::randn({count});
  std::vector<uint16_t> codes(count);
  for (auto _ : state) {
    for (int64_t i = 0; i < count; ++i) codes[static_cast<size_t>(i)] = static_cast<uint16_t>(encode(values.data_ptr<float>()[i], format));
    benchmark::DoNotOptimize(codes.data());
  }
  state.SetLabel(format.name);
  count_elements(state, 6);
}

void encode_torch(benchmark::State& state) {
  const auto values = torch::randn({count});
  auto codes = torch::empty({count}, dtypes[state.range(0)]);
  for (auto _ : state) codes.copy_(values);
  state.SetLabel(formats[state.range(0)]->name);
  count_elements(state, 4 + static_cast<int64_t>(codes.element_size()));
}

void decode_torch(benchmark::State& state) {
  const auto codes = torch::randn({count}).to(dtypes[state.range(0)]);
  auto values = torch::empty({count});
  for (auto _ : state) values.copy_(codes);
  state.SetLabel(formats[state.range(0)]->name);
  count_elements(state, 4 + static_cast<int64_t>(codes.element_size()));
}

struct State {
  torch::Tensor parameter = torch::randn({count}), gradient = torch::randn({count}) * 1024, mean = torch::zeros({count}), square = torch::ones({count});
};

// Unscale, finite check, norm, clip and Adam: 4 + 28 bytes per element.
void guarded_step(benchmark::State& state) {
  State s;
  const kernels::Adam adam = kernels::adam_at_step({}, 5);
  for (auto _ : state) {
    const auto norm = squared_norm(s.gradient);
    guarded_adam({adam, {.inverse_scale = 1.0 / 1024, .max_norm = 1.0}}, norm, s.parameter, s.gradient, s.mean, s.square);
    benchmark::DoNotOptimize(norm.item<double>());
  }
  count_elements(state, 32);
}

// The same with LibTorch's operators: unscale and check (8), norm (4), clip (8), its fused Adam (28).
void operator_step(benchmark::State& state) {
  State s;
  const auto inverse = torch::full({1}, 1.0F), step = torch::full({1}, 5.0F);  // the gradient is changed in place: a scale would shrink it to nothing
  for (auto _ : state) {
    auto found = torch::zeros({1});
    at::_amp_foreach_non_finite_check_and_unscale_({s.gradient}, found, inverse);
    if (found.item<float>() > 0) continue;
    const double norm = s.gradient.norm().item<double>();
    s.gradient.mul_(std::max(1.0, 1.0 / norm));  // multiplied, as clipping does, but by 1: see above
    std::vector<torch::Tensor> p{s.parameter}, g{s.gradient}, m{s.mean}, v{s.square}, none, t{step};
    at::_fused_adam_(p, g, m, v, none, t, 1e-3, 0.9, 0.999, 0.0, 1e-8, false, false);
  }
  count_elements(state, 48);
}

BENCHMARK(encode_by_hand)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(encode_torch)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(decode_torch)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(guarded_step)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(operator_step)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace manyranks

BENCHMARK_MAIN();
