#include "data/resize.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

// The vertical pass is plain loops over rows: the compiler makes an AVX2 version beside the portable one, chosen when
// the program starts. Not under sanitizers, which cannot run before that choice.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(MANYRANKS_SANITIZE)
#define MANYRANKS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MANYRANKS_CLONES
#endif

namespace manyranks {

namespace {

// For every output position: the first input position, and the weights from there on (they add up to 1).
struct Taps {
  std::vector<int> first, count;
  std::vector<float> weight;  // (out, widest)
  int widest = 0;
};

void make_taps(int in, int full, int begin, int out, Taps& taps) {
  const double scale = static_cast<double>(in) / full;
  const double support = std::max(scale, 1.0);  // shrinking: the triangle covers all that one output pixel replaces
  taps.widest = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.first.resize(static_cast<std::size_t>(out));
  taps.count.resize(static_cast<std::size_t>(out));
  taps.weight.assign(static_cast<std::size_t>(out) * taps.widest, 0.0f);
  for (int i = 0; i < out; ++i) {
    const double centre = (begin + i + 0.5) * scale;
    const int low = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int high = std::min(static_cast<int>(centre + support + 0.5), in);
    float* weight = taps.weight.data() + static_cast<std::size_t>(i) * taps.widest;
    double sum = 0;
    for (int k = low; k < high; ++k) sum += std::max(0.0, 1.0 - std::abs(k - centre + 0.5) / support);
    for (int k = low; k < high; ++k) weight[k - low] = static_cast<float>(std::max(0.0, 1.0 - std::abs(k - centre + 0.5) / support) / sum);
    taps.first[static_cast<std::size_t>(i)] = low;
    taps.count[static_cast<std::size_t>(i)] = high - low;
  }
}

MANYRANKS_CLONES
void mix_rows(const std::uint8_t* __restrict source, std::size_t stride, const float* weight, int rows, std::size_t values, float* __restrict out) {
  int k = 0;
  std::fill(out, out + values, 0.0f);
  for (; k + 4 <= rows; k += 4) {  // four rows a pass: a quarter of the loads and stores of `out`
    const std::uint8_t *a = source + k * stride, *b = a + stride, *c = b + stride, *d = c + stride;
    const float wa = weight[k], wb = weight[k + 1], wc = weight[k + 2], wd = weight[k + 3];
    for (std::size_t x = 0; x < values; ++x) out[x] += (wa * a[x] + wb * b[x]) + (wc * c[x] + wd * d[x]);
  }
  for (; k < rows; ++k) {
    const std::uint8_t* a = source + k * stride;
    const float wa = weight[k];
    for (std::size_t x = 0; x < values; ++x) out[x] += wa * a[x];
  }
}

// One pixel is one vector of four floats, of which `channels` count; the row has padding for the last pixel's rest.
void mix_columns(const float* row, const Taps& taps, int first_column, int channels, int out_width, std::uint8_t* out) {
  using Pixel = float __attribute__((vector_size(16)));
  for (int x = 0; x < out_width; ++x) {
    const auto i = static_cast<std::size_t>(x);
    const float* weight = taps.weight.data() + i * taps.widest;
    const float* source = row + static_cast<std::size_t>(taps.first[i] - first_column) * channels;
    Pixel sum = {0.5f, 0.5f, 0.5f, 0.5f};
    for (int k = 0; k < taps.count[i]; ++k) {
      Pixel pixel;
      std::memcpy(&pixel, source + static_cast<std::size_t>(k) * channels, sizeof pixel);
      sum += weight[k] * pixel;
    }
    for (int c = 0; c < channels; ++c) out[c] = static_cast<std::uint8_t>(std::min(sum[c], 255.0f));
    out += channels;
  }
}

}  // namespace

void resize_bilinear(const std::uint8_t* source, const Resize& plan, std::uint8_t* out) {
  thread_local Taps columns, rows;  // kept: a loader resizes millions of images, mostly of a few sizes
  thread_local std::vector<float> row;
  make_taps(plan.width, plan.full_width, plan.left, plan.out_width, columns);
  make_taps(plan.height, plan.full_height, plan.top, plan.out_height, rows);

  // Vertical first: it runs along whole rows, so the heavier pass is the one that vectorises best. Only the columns
  // that the crop needs take part.
  const auto channels = static_cast<std::size_t>(plan.channels);
  const auto first = static_cast<std::size_t>(columns.first.front());
  const auto last = static_cast<std::size_t>(columns.first.back() + columns.count.back());
  const std::size_t values = (last - first) * channels, stride = static_cast<std::size_t>(plan.width) * channels;
  row.assign(values + 4, 0.0f);
  for (int y = 0; y < plan.out_height; ++y) {
    const auto i = static_cast<std::size_t>(y);
    mix_rows(source + static_cast<std::size_t>(rows.first[i]) * stride + first * channels, stride,
             rows.weight.data() + i * rows.widest, rows.count[i], values, row.data());
    mix_columns(row.data(), columns, static_cast<int>(first), plan.channels, plan.out_width, out + i * plan.out_width * channels);
  }
}

Resize centre_crop(int width, int height, int channels, int size) {
  Resize plan{width, height, channels, size, size, 0, 0, size, size};
  if (width < height) plan.full_height = static_cast<int>(static_cast<std::int64_t>(size) * height / width);
  if (height < width) plan.full_width = static_cast<int>(static_cast<std::int64_t>(size) * width / height);
  plan.left = static_cast<int>(std::nearbyint((plan.full_width - size) / 2.0));  // half to even, as Python rounds
  plan.top = static_cast<int>(std::nearbyint((plan.full_height - size) / 2.0));
  return plan;
}

Resize stretch(int width, int height, int channels, int size) {
  return {width, height, channels, size, size, 0, 0, size, size};
}

}  // namespace manyranks
