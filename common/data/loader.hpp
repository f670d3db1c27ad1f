// The loader: samples to float batches, by worker threads that run ahead of the training loop.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "data/dataset.hpp"

namespace manyranks {

// Random decisions are keyed by (seed, epoch, index of the sample): the pixels of a batch do not depend on which
// thread made it, nor on how many there are.
struct Augment {
  int padding = 0;    // zero pixels around, then a random crop of the original size
  bool flip = false;  // left-right, every second time
  std::uint64_t seed = 1;
};

enum class Layout { chw, hwc };  // hwc is what LibTorch calls channels_last

// Where batch buffers come from. The default is the heap; LibTorch's side gives pinned memory where there is a GPU.
struct BufferHooks {
  std::function<void*(std::size_t)> allocate;
  std::function<void(void*)> release;
};

struct LoaderOptions {
  std::int64_t batch = 64;
  int workers = 1;   // threads; 0: next() makes the batch itself, and nothing runs ahead
  int prefetch = 2;  // batches made ahead: the bound on memory
  int keep = 1;      // batches that stay valid after next(): 2 while the last one is still being copied to a GPU
  Layout layout = Layout::chw;
  Augment augment = {};
  // value = (pixel / 255 - mean) / deviation, per channel; the last one serves all further channels.
  std::vector<float> mean = {0.0f}, deviation = {1.0f};
  BufferHooks buffers = {};
};

struct Batch {
  std::int64_t size = 0;   // samples in it: options.batch, fewer at the end, 0 for a rank that has run out
  float* values = nullptr;         // (size, C, H, W) or (size, H, W, C)
  std::int64_t* labels = nullptr;  // (size)
};

class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Begins an epoch over `indices`, as DistributedSampler deals them, in `batches` batches: more than they fill gives
  // empty ones at the end, so that all ranks make as many steps. An epoch not yet finished is dropped.
  void start(std::vector<std::int64_t> indices, std::int64_t epoch, std::int64_t batches);

  // The next batch, or nullptr at the end of the epoch. It stays valid until `keep` further calls. What went wrong in a
  // worker is thrown here, when the batch it belongs to is due, and ends the epoch.
  const Batch* next();

  const Dataset& dataset() const { return *dataset_; }
  const LoaderOptions& options() const { return options_; }

 private:
  struct Shared;  // the ring of buffers, and what the workers see
  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::unique_ptr<Shared> shared_;
};

// One sample: augment `pixels` (HWC), normalise, write to `values` in the layout asked for.
void augment_and_normalise(const std::uint8_t* pixels, const ImageShape& shape, const LoaderOptions& options,
                           std::int64_t epoch, std::int64_t index, float* values);

}  // namespace manyranks
