#include "data/loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "data/random.hpp"    // Random
#include "launch/errors.hpp"  // usage_error

namespace manyranks {

namespace {

float of_channel(const std::vector<float>& values, int channel) {
  return values[std::min(static_cast<std::size_t>(channel), values.size() - 1)];
}

constexpr std::size_t line = 64;  // bytes of a cache line: labels begin on their own
std::size_t round_up(std::size_t bytes) { return (bytes + line - 1) / line * line; }

}  // namespace

void augment_and_normalise(const std::uint8_t* pixels, const ImageShape& shape, const LoaderOptions& options,
                           std::int64_t epoch, std::int64_t index, float* values) {
  const Augment& augment = options.augment;
  Random random(augment.seed, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(index));
  const auto range = static_cast<std::uint64_t>(2 * augment.padding + 1);
  const int dy = static_cast<int>(random.below(range)) - augment.padding, dx = static_cast<int>(random.below(range)) - augment.padding;
  const bool flip = augment.flip && random.chance(0.5);
  const int height = shape.height, width = shape.width, channels = shape.channels;

  for (int c = 0; c < channels; ++c) {
    const float scale = 1.0f / (255.0f * of_channel(options.deviation, c)), shift = -of_channel(options.mean, c) / of_channel(options.deviation, c);
    const std::ptrdiff_t step = options.layout == Layout::chw ? 1 : channels;
    float* plane = values + (options.layout == Layout::chw ? static_cast<std::ptrdiff_t>(c) * height * width : c);
    for (int y = 0; y < height; ++y) {
      float* out = plane + static_cast<std::ptrdiff_t>(y) * width * step;
      const int from = y + dy;
      // Output columns [begin, end) have a source pixel; the rest is padding, which is black before normalising.
      const bool inside = from >= 0 && from < height;
      const int begin = inside ? std::clamp(-dx, 0, width) : width, end = inside ? std::clamp(width - dx, 0, width) : width;
      const std::uint8_t* row = pixels + (static_cast<std::ptrdiff_t>(inside ? from : 0) * width + (inside ? dx : 0)) * channels + c;
      for (int x = 0; x < begin; ++x) out[x * step] = shift;
      for (int x = begin; x < end; ++x) out[x * step] = static_cast<float>(row[x * channels]) * scale + shift;
      for (int x = std::max(begin, end); x < width; ++x) out[x * step] = shift;
      if (flip)
        for (int x = 0; x < width / 2; ++x) std::swap(out[x * step], out[(width - 1 - x) * step]);
    }
  }
}

// Batch b lives in slot b % slots, slots = prefetch + keep. With d batches delivered, workers may make d .. d+prefetch-1
// while the caller holds d-keep .. d-1: no slot is written while it is read. All fields are guarded by `mutex`, except
// the buffers, which belong to whoever claimed a part of them.
struct Loader::Shared {
  struct Slot {
    Batch batch;
    void* memory = nullptr;
    std::int64_t number = -1, unfinished = 0;  // the batch in it, and how many of its samples are still being made
    std::exception_ptr error;
    std::int64_t error_sample = 0;  // the first bad sample of a batch is reported, whichever worker met its own first
  };

  Shared(const Dataset& dataset_, const LoaderOptions& options_) : dataset(dataset_), options(options_) {}
  ~Shared() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    work.notify_all();
    threads.clear();  // joins
    for (Slot& slot : slots)
      if (slot.memory) options.buffers.release(slot.memory);
  }

  std::int64_t batch_size(std::int64_t number) const {
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(indices.size()) - number * options.batch, 0, options.batch);
  }
  Slot& slot_of(std::int64_t number) { return slots[static_cast<std::size_t>(number) % slots.size()]; }

  void begin_batch(std::int64_t number) {
    Slot& slot = slot_of(number);
    slot.number = number;
    slot.batch.size = slot.unfinished = batch_size(number);
    slot.error = nullptr;
  }

  // Samples [first, last) of one batch. Called without the lock: `indices` and `epoch` stand still while work is in flight.
  void make(Slot& slot, std::int64_t number, std::int64_t first, std::int64_t last, std::vector<std::uint8_t>& pixels) {
    const ImageShape shape = dataset.shape();
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t index = indices[static_cast<std::size_t>(number * options.batch + i)];
      try {
        slot.batch.labels[i] = dataset.read(index, pixels.data());
        augment_and_normalise(pixels.data(), shape, options, epoch, index, slot.batch.values + static_cast<std::size_t>(i) * shape.values());
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!slot.error || i < slot.error_sample) {
          slot.error = std::current_exception();
          slot.error_sample = i;
        }
        return;
      }
    }
  }

  bool may_claim() const { return claim_batch < std::min(full_batches, delivered + options.prefetch); }

  void worker() {
    std::vector<std::uint8_t> pixels(dataset.shape().values());
    const std::int64_t piece = std::clamp<std::int64_t>(options.batch / (4 * std::max(1, options.workers)), 1, 64);
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stopping || may_claim(); });
      if (stopping) return;
      const std::int64_t number = claim_batch, first = claim_sample;
      if (first == 0) begin_batch(number);
      Slot& slot = slot_of(number);
      const std::int64_t last = std::min(first + piece, slot.batch.size);
      claim_sample = last;
      if (last == slot.batch.size) {
        ++claim_batch;
        claim_sample = 0;
      }
      ++in_flight;
      lock.unlock();
      make(slot, number, first, last, pixels);
      lock.lock();
      --in_flight;
      slot.unfinished -= last - first;
      if (slot.unfinished == 0 || in_flight == 0) done.notify_all();
    }
  }

  // Ends the epoch: nothing more is claimed, and nothing is in flight when it returns.
  void quiesce(std::unique_lock<std::mutex>& lock) {
    full_batches = batches = 0;
    done.wait(lock, [&] { return in_flight == 0; });
  }

  const Dataset& dataset;
  const LoaderOptions& options;
  std::vector<Slot> slots;
  std::vector<std::uint8_t> own_pixels;  // for next() with no workers

  std::mutex mutex;
  std::condition_variable work, done;
  std::vector<std::int64_t> indices;
  std::int64_t epoch = 0, batches = 0, full_batches = 0, delivered = 0, claim_batch = 0, claim_sample = 0, in_flight = 0;
  bool stopping = false;
  std::vector<std::jthread> threads;  // last: joined before anything they use goes
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options) : dataset_(std::move(dataset)), options_(std::move(options)) {
  if (options_.batch < 1 || options_.workers < 0 || options_.prefetch < 1 || options_.keep < 1 || options_.augment.padding < 0 ||
      options_.mean.empty() || options_.deviation.empty())
    throw usage_error("loader", fmt::format("batch {}, workers {}, prefetch {}, keep {}, padding {}", options_.batch, options_.workers,
                                            options_.prefetch, options_.keep, options_.augment.padding));
  if (!options_.buffers.allocate) options_.buffers = {[](std::size_t bytes) { return std::aligned_alloc(line, round_up(bytes)); }, [](void* p) { std::free(p); }};

  shared_ = std::make_unique<Shared>(*dataset_, options_);
  const auto samples = static_cast<std::size_t>(options_.batch);
  const std::size_t values = round_up(samples * dataset_->shape().values() * sizeof(float)), labels = samples * sizeof(std::int64_t);
  shared_->slots.resize(static_cast<std::size_t>(options_.prefetch + options_.keep));
  for (auto& slot : shared_->slots) {
    slot.memory = options_.buffers.allocate(values + labels);
    if (!slot.memory) throw std::bad_alloc();
    slot.batch.values = static_cast<float*>(slot.memory);
    slot.batch.labels = reinterpret_cast<std::int64_t*>(static_cast<char*>(slot.memory) + values);
  }
  shared_->own_pixels.resize(dataset_->shape().values());
  for (int i = 0; i < options_.workers; ++i) shared_->threads.emplace_back([shared = shared_.get()] { shared->worker(); });
}

Loader::~Loader() = default;

void Loader::start(std::vector<std::int64_t> indices, std::int64_t epoch, std::int64_t batches) {
  const auto samples = static_cast<std::int64_t>(indices.size());
  const std::int64_t full = (samples + options_.batch - 1) / options_.batch;
  if (batches < full) throw usage_error("loader", fmt::format("{} batches of {} do not hold {} samples", batches, options_.batch, samples));
  for (const std::int64_t index : indices)
    if (index < 0 || index >= dataset_->size()) throw usage_error("loader", fmt::format("index {} of {} samples", index, dataset_->size()));
  Shared& s = *shared_;
  {
    std::unique_lock lock(s.mutex);
    s.quiesce(lock);
    s.indices = std::move(indices);
    s.epoch = epoch;
    s.delivered = s.claim_batch = s.claim_sample = 0;
    s.batches = batches;
    s.full_batches = full;
    for (auto& slot : s.slots) slot.number = -1;
  }
  s.work.notify_all();
}

const Batch* Loader::next() {
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  if (s.delivered >= s.batches) return nullptr;
  const std::int64_t number = s.delivered;
  auto& slot = s.slot_of(number);
  if (number >= s.full_batches || options_.workers == 0) {
    s.begin_batch(number);
    if (slot.batch.size > 0) {
      lock.unlock();
      s.make(slot, number, 0, slot.batch.size, s.own_pixels);
      lock.lock();
    }
    slot.unfinished = 0;
  }
  s.done.wait(lock, [&] { return slot.number == number && slot.unfinished == 0; });
  if (slot.error) {
    const auto error = slot.error;
    s.quiesce(lock);
    std::rethrow_exception(error);
  }
  ++s.delivered;
  lock.unlock();
  s.work.notify_all();
  return &slot.batch;
}

}  // namespace manyranks
