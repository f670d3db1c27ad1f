// What 1/n of a layer costs, one process: forward and backward of the part that one of n ranks computes, without its exchange.
// A part is worth cutting off as long as time falls with it.
#include <benchmark/benchmark.h>

#include "comm/communicator.hpp"
#include "launch/process.hpp"
#include "models/model.hpp"  // cross_entropy
#include "parallel/tensor_parallel.hpp"

using namespace manyranks;
using torch::Tensor;

namespace {

Communicator* alone = nullptr;  // of one rank: every exchange is nothing
constexpr int64_t samples = 8, positions = 128, width = 384, vocabulary = 8192, heads = 12;

Tensor parameter(std::vector<int64_t> sizes) { return torch::randn(sizes).mul_(0.05).requires_grad_(); }

template <class Forward>
void run(benchmark::State& state, const std::vector<Tensor>& leaves, const Forward& forward) {
  const auto both_ways = [&] {
    const Tensor y = forward();
    y.backward(y.dim() == 0 ? Tensor() : torch::ones_like(y));
    for (auto leaf : leaves) leaf.mutable_grad() = Tensor();
  };
  both_ways();  // memory that was never touched costs more than the layer
  for (auto _ : state) both_ways();
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(state.iterations() * samples * positions), benchmark::Counter::kIsRate);
}

void column(benchmark::State& state) {
  const Tensor x = parameter({samples, positions, width}), w = parameter({4 * width / state.range(0), width}), b = parameter({4 * width / state.range(0)});
  run(state, {x, w, b}, [&] { return column_linear(x, w, b, {*alone}); });
}
BENCHMARK(column)->ArgName("n")->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMillisecond);

void row(benchmark::State& state) {
  const Tensor x = parameter({samples, positions, 4 * width / state.range(0)}), w = parameter({width, 4 * width / state.range(0)}), b = parameter({width});
  run(state, {x, w, b}, [&] { return row_linear(x, w, b, {*alone}); });
}
BENCHMARK(row)->ArgName("n")->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMillisecond);

void attention_heads(benchmark::State& state) {
  const int64_t mine = heads / state.range(0);
  const Tensor qkv = parameter({3, samples, mine, positions, width / heads});
  run(state, {qkv}, [&] { return at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, true); });
}
BENCHMARK(attention_heads)->ArgName("n")->Arg(1)->Arg(2)->Arg(4)->Unit(benchmark::kMillisecond);

// Norms and residuals are the copies that sequence parallelism takes away.
void norm_of_part_of_sequence(benchmark::State& state) {
  const Tensor x = parameter({samples, positions / state.range(0), width}), w = parameter({width}), b = parameter({width});
  run(state, {x, w, b}, [&] { return x + torch::layer_norm(x, {width}, w, b); });
}
BENCHMARK(norm_of_part_of_sequence)->ArgName("n")->Arg(1)->Arg(2)->Arg(4)->Unit(benchmark::kMillisecond);

void vocabulary_loss(benchmark::State& state) {
  const Tensor logits = parameter({samples, positions, vocabulary / state.range(0)}), target = torch::randint(vocabulary / state.range(0), {samples, positions}, torch::kLong);
  run(state, {logits}, [&] { return vocabulary_cross_entropy(logits, target, *alone); });
}
BENCHMARK(vocabulary_loss)->ArgName("n")->Arg(1)->Arg(2)->Arg(4)->Unit(benchmark::kMillisecond);

void dense_loss(benchmark::State& state) {
  const Tensor logits = parameter({samples, positions, vocabulary}), target = torch::randint(vocabulary, {samples, positions}, torch::kLong);
  run(state, {logits}, [&] { return cross_entropy(logits, target); });
}
BENCHMARK(dense_loss)->Unit(benchmark::kMillisecond);

// A mask that does not depend on who draws it, against LibTorch's generator.
void dropout_by_key(benchmark::State& state) {
  const Tensor x = parameter({samples, positions, width});
  run(state, {x}, [&] { return keyed_dropout(x, 0.1, 1, 0, 0, positions); });
}
BENCHMARK(dropout_by_key)->Unit(benchmark::kMillisecond);

void dropout_of_libtorch(benchmark::State& state) {
  const Tensor x = parameter({samples, positions, width});
  run(state, {x}, [&] { return torch::dropout(x, 0.1, true); });
}
BENCHMARK(dropout_of_libtorch)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return static_cast<int>(Exit::usage);
  Process process(1, argv);
  return process.run([&] {
    Options options("04_model_parallel/bench_layers", "parts of layers");
    process.start(options);
    alone = &process.world();
    benchmark::RunSpecifiedBenchmarks();
  });
}
