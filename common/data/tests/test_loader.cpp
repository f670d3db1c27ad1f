// The loader: the same batches whatever the number of workers, bounded memory, errors where they belong.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>
#include <thread>

#include "data/digits.hpp"
#include "data/image_folder.hpp"
#include "data/jpeg.hpp"
#include "data/loader.hpp"
#include "data/sampler.hpp"
#include "data/shapes.hpp"
#include "temporary_folder.hpp"

using namespace manyranks;

namespace {

std::vector<std::int64_t> range(std::int64_t n) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), std::int64_t{0});
  return out;
}

struct Epoch {
  std::vector<float> values;
  std::vector<std::int64_t> labels, sizes;
  bool operator==(const Epoch&) const = default;
};

Epoch collect(Loader& loader) {
  Epoch out;
  while (const Batch* batch = loader.next()) {
    const auto values = static_cast<std::size_t>(batch->size) * loader.dataset().shape().values();
    out.values.insert(out.values.end(), batch->values, batch->values + values);
    out.labels.insert(out.labels.end(), batch->labels, batch->labels + batch->size);
    out.sizes.push_back(batch->size);
  }
  return out;
}

TEST(Loader, PixelsDoNotDependOnWorkers) {
  const auto data = std::make_shared<Shapes>(Split::train, 32);
  DistributedSampler sampler(200, 1, 3);
  std::vector<Epoch> epochs;
  for (int workers : {0, 1, 2, 5})
    for (int prefetch : {1, 4}) {
      LoaderOptions options{.batch = 16, .workers = workers, .prefetch = prefetch};
      options.augment = {.padding = 4, .flip = true, .seed = 3};
      Loader loader(data, options);
      Epoch both;
      for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
        sampler.start_epoch(epoch);
        loader.start(sampler.indices(), epoch, sampler.batches(16));
        const Epoch one = collect(loader);
        both.values.insert(both.values.end(), one.values.begin(), one.values.end());
        both.labels.insert(both.labels.end(), one.labels.begin(), one.labels.end());
      }
      epochs.push_back(both);
    }
  for (const Epoch& epoch : epochs) EXPECT_EQ(epoch, epochs.front());
}

TEST(Loader, RanksWithLessGetEmptyBatches) {
  Loader loader(std::make_shared<Digits>(Split::train), {.batch = 4, .workers = 2});
  loader.start(range(6), 0, 4);
  EXPECT_EQ(collect(loader).sizes, (std::vector<std::int64_t>{4, 2, 0, 0}));
  loader.start({}, 1, 2);
  EXPECT_EQ(collect(loader).sizes, (std::vector<std::int64_t>{0, 0}));
  EXPECT_EQ(loader.next(), nullptr);
  EXPECT_THROW(loader.start(range(9), 2, 2), Error);
  EXPECT_THROW(loader.start({60000}, 2, 2), Error);
}

TEST(Loader, NormalisesInBothLayouts) {
  const auto data = std::make_shared<Shapes>(Split::train, 32);
  std::vector<std::uint8_t> pixels(data->shape().values());
  data->read(5, pixels.data());
  for (Layout layout : {Layout::chw, Layout::hwc}) {
    LoaderOptions options{.batch = 1, .layout = layout, .mean = {0.5f, 0.4f, 0.3f}, .deviation = {0.2f, 0.25f}};
    Loader loader(data, options);
    loader.start({5}, 0, 1);
    const Batch* batch = loader.next();
    for (int c = 0; c < 3; ++c)
      for (int i = 0; i < 1024; ++i) {
        const float expected = (static_cast<float>(pixels[static_cast<std::size_t>(3 * i + c)]) / 255.0f - options.mean[static_cast<std::size_t>(c)]) / (c == 0 ? 0.2f : 0.25f);
        ASSERT_NEAR(batch->values[layout == Layout::chw ? c * 1024 + i : 3 * i + c], expected, 1e-5);
      }
  }
}

TEST(Loader, AugmentationShiftsAndFlips) {
  const ImageShape shape{1, 4, 4};
  std::vector<std::uint8_t> pixels(16);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{1});
  LoaderOptions options{.deviation = {1.0f / 255}};
  options.augment = {.padding = 1, .flip = true, .seed = 1};
  std::set<std::vector<int>> seen;
  for (std::int64_t index = 0; index < 400; ++index) {
    float out[16];
    augment_and_normalise(pixels.data(), shape, options, 0, index, out);
    std::vector<int> image(16);
    for (std::size_t i = 0; i < 16; ++i) image[i] = static_cast<int>(std::lround(out[i]));
    bool found = false;  // one of 3 x 3 places, flipped or not
    for (int dy = -1; dy <= 1; ++dy)
      for (int dx = -1; dx <= 1; ++dx)
        for (bool flip : {false, true}) {
          std::vector<int> want(16);
          for (int y = 0; y < 4; ++y)
            for (int x = 0; x < 4; ++x) {
              const int sy = y + dy, sx = (flip ? 3 - x : x) + dx;
              want[static_cast<std::size_t>(4 * y + x)] = sy < 0 || sy > 3 || sx < 0 || sx > 3 ? 0 : 4 * sy + sx + 1;
            }
          found = found || want == image;
        }
    ASSERT_TRUE(found) << index;
    seen.insert(image);
  }
  EXPECT_EQ(seen.size(), 18u);
}

// Counts how far ahead the workers are.
struct Counting final : Dataset {
  mutable std::atomic<std::int64_t> reads{0};
  std::int64_t size() const override { return 1000; }
  int classes() const override { return 2; }
  ImageShape shape() const override { return {1, 2, 2}; }
  std::int64_t read(std::int64_t index, std::uint8_t* pixels) const override {
    std::fill(pixels, pixels + 4, static_cast<std::uint8_t>(index));
    ++reads;
    return index % 2;
  }
  std::string name() const override { return "counting"; }
  std::string describe() const override { return "counting"; }
};

TEST(Loader, PrefetchIsBoundedAndBuffersAreReused) {
  const auto data = std::make_shared<Counting>();
  std::atomic<int> allocated{0}, released{0};
  LoaderOptions options{.batch = 10, .workers = 2, .prefetch = 3, .keep = 2};
  options.buffers = {[&](std::size_t bytes) { ++allocated; return std::malloc(bytes); }, [&](void* p) { ++released; std::free(p); }};
  {
    Loader loader(data, options);
    loader.start(range(1000), 0, 100);
    std::set<const Batch*> slots;
    for (std::int64_t delivered = 1; delivered <= 50; ++delivered) {
      const Batch* batch = loader.next();
      slots.insert(batch);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // time to run ahead, if nothing held them back
      ASSERT_LE(data->reads, (delivered + 3) * 10);
      ASSERT_EQ(std::lround(batch->values[0] * 255), (delivered - 1) * 10 % 256);
    }
    EXPECT_EQ(slots.size(), 5u);
    loader.start(range(20), 1, 2);  // the rest of the epoch is dropped
    EXPECT_EQ(collect(loader).sizes, (std::vector<std::int64_t>{10, 10}));
    loader.start(range(1000), 2, 100);  // and a loader may go in mid-epoch
  }
  EXPECT_EQ(allocated, 5);
  EXPECT_EQ(released, 5);
}

TEST(Loader, KeptBatchesStayAsTheyWere) {
  Loader loader(std::make_shared<Counting>(), {.batch = 10, .workers = 3, .prefetch = 2, .keep = 2});
  loader.start(range(200), 0, 20);
  const Batch* before = loader.next();
  for (int b = 1; b < 20; ++b) {
    const Batch* now = loader.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < 10; ++i) ASSERT_EQ(std::lround(before->values[i * 4] * 255), (b - 1) * 10 + i);
    before = now;
  }
}

TEST(Loader, ErrorSurfacesWithItsBatchAndNamesTheFile) {
  TemporaryFolder folder;
  write_image_folder(Shapes(Split::train, 32), folder.path(), 40);
  ImageFolder listed(folder.path(), {.size = 32});
  const std::string first = listed.path(25).string(), second = listed.path(27).string();
  for (const auto& file : {first, second}) std::filesystem::resize_file(file, 300);
  const auto data = std::make_shared<ImageFolder>(folder.path(), ImageOptions{.size = 32});
  for (int workers : {0, 1, 4}) {
    Loader loader(data, {.batch = 10, .workers = workers, .prefetch = 4});
    loader.start(range(40), 0, 4);
    EXPECT_EQ(loader.next()->size, 10);
    EXPECT_EQ(loader.next()->size, 10);
    expect_error(Exit::data, first, "at byte ", [&] { loader.next(); });
    EXPECT_EQ(loader.next(), nullptr);
    loader.start(range(20), 1, 2);  // and it can go on with other data
    EXPECT_EQ(collect(loader).sizes.size(), 2u);
  }
}

}  // namespace
