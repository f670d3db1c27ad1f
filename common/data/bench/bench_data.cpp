// What a sample costs: parse, draw, decode, resize, load. One process, Google Benchmark; rates are samples (or bytes) a second.
#include <benchmark/benchmark.h>

#include <numeric>

#include "data/digits.hpp"
#include "data/idx.hpp"
#include "data/image_folder.hpp"
#include "data/jpeg.hpp"
#include "data/loader.hpp"
#include "data/resize.hpp"
#include "data/sampler.hpp"
#include "data/shapes.hpp"

using namespace manyranks;

namespace {

// An ImageNet-like photo: 500x375, from the shapes.
Bytes photo() {
  const Shapes shapes(Split::train, 500);
  Bytes pixels(shapes.shape().values());
  shapes.read(1, pixels.data());
  return encode_jpeg(pixels.data(), 500, 375, 90);
}

void parse_idx_file(benchmark::State& state) {
  Bytes file = {0, 0, 8, 3, 0, 0, 0x27, 0x10, 0, 0, 0, 28, 0, 0, 0, 28};  // 10000 x 28 x 28: MNIST's test images
  file.resize(16 + 10000 * 784, 7);
  for (auto _ : state) benchmark::DoNotOptimize(parse_idx(file, 3, "bench").values.data());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(file.size()));
}
BENCHMARK(parse_idx_file);

void draw_digit(benchmark::State& state) {
  const Digits data(Split::train);
  std::uint8_t pixels[784];
  std::int64_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(data.read(i++ % data.size(), pixels));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(draw_digit);

void draw_shape(benchmark::State& state) {
  const Shapes data(Split::train, static_cast<int>(state.range(0)));
  Bytes pixels(data.shape().values());
  std::int64_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(data.read(i++ % data.size(), pixels.data()));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(draw_shape)->Arg(32)->Arg(224);

void decode(benchmark::State& state) {  // Arg: cover this many pixels, at reduced scale where that is enough; 0: in full
  const Bytes jpeg = photo();
  const int enough = static_cast<int>(state.range(0));
  Image image;
  for (auto _ : state) decode_jpeg(jpeg, "bench", image, {enough, enough});
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(decode)->Arg(0)->Arg(160)->Arg(64);

void resize_to_224(benchmark::State& state) {
  Image image;
  decode_jpeg(photo(), "bench", image);
  Bytes out(3 * 224 * 224);
  for (auto _ : state) {
    resize_bilinear(image.pixels.data(), centre_crop(image.width, image.height, 3, 224), out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(resize_to_224);

// The photo, many times over: what a loader does with files, without a disk in the measurement.
struct Photos final : Dataset {
  Bytes jpeg = photo();
  std::int64_t size() const override { return 64; }
  int classes() const override { return 1; }
  ImageShape shape() const override { return {3, 224, 224}; }
  std::int64_t read(std::int64_t, std::uint8_t* pixels) const override {
    decode_and_resize(jpeg, "bench", {}, pixels);
    return 0;
  }
  std::string name() const override { return "photos"; }
  std::string describe() const override { return "photos"; }
};

void load(benchmark::State& state, std::shared_ptr<const Dataset> data) {
  LoaderOptions options{.batch = 32, .workers = static_cast<int>(state.range(0)), .prefetch = 2};
  options.augment = {.padding = 4, .flip = true};
  Loader loader(data, options);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min<std::int64_t>(data->size(), 2048)));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  const auto batches = static_cast<std::int64_t>(indices.size()) / 32;
  std::int64_t epoch = 0;
  for (auto _ : state) {
    loader.start(indices, epoch++, batches);
    while (const Batch* batch = loader.next()) benchmark::DoNotOptimize(batch->values);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(indices.size()));
}
BENCHMARK_CAPTURE(load, digits, std::make_shared<Digits>(Split::train))->Arg(0)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(load, photos, std::make_shared<Photos>())->Arg(0)->Arg(1)->Arg(2)->UseRealTime();

void deal_samples(benchmark::State& state) {  // ImageNet's 1.28 million, for 8 ranks
  DistributedSampler sampler(1281167, 3, 8);
  std::int64_t epoch = 0;
  for (auto _ : state) sampler.start_epoch(epoch++);
}
BENCHMARK(deal_samples)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
