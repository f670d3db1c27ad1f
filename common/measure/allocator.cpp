#include "measure/allocator.hpp"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <fmt/format.h>

#include <chrono>

#include "launch/errors.hpp"
#include "measure/block_cache.hpp"
#include "measure/table.hpp"  // format_bytes

namespace manyranks {
namespace {

// Sits before the data. LibTorch requires data == context, so the size cannot travel in the context; 64 bytes keep the
// alignment that AVX-512 kernels count on.
struct alignas(64) Header {
  CountingAllocator* owner;
  int64_t bytes;
  Tag tag;
};
static_assert(sizeof(Header) == 64);

Header* header_of(void* data) { return static_cast<Header*>(data) - 1; }

thread_local Tag current_tag = Tag::other;
thread_local const char* current_name = "";

// AddressSanitizer finds use after free only where what is freed is really given back.
#ifdef __SANITIZE_ADDRESS__
void* take(size_t bytes) { return c10::alloc_cpu(bytes); }
void give(void* block, size_t) { c10::free_cpu(block); }
#else
BlockCache& cache() {
  static auto* const blocks = new BlockCache;  // never destroyed: tensors may die after main()
  return *blocks;
}
void* take(size_t bytes) { return cache().take(bytes); }
void give(void* block, size_t bytes) { cache().give(block, bytes); }
#endif

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

const char* tag_name(Tag tag) {
  switch (tag) {
    case Tag::parameters: return "parameters";
    case Tag::gradients: return "gradients";
    case Tag::optimizer: return "optimizer";
    case Tag::activations: return "activations";
    case Tag::buffers: return "buffers";
    case Tag::other: break;
  }
  return "other";
}

MemoryTag::MemoryTag(Tag tag, const char* name) : previous_tag_(current_tag), previous_name_(current_name) {
  current_tag = tag;
  current_name = name;
}

MemoryTag::~MemoryTag() {
  current_tag = previous_tag_;
  current_name = previous_name_;
}

CountingAllocator& CountingAllocator::get() {
  static auto* const allocator = new CountingAllocator;
  return *allocator;
}

CountingAllocator& CountingAllocator::install() {
  static const bool installed = [] {
    c10::SetCPUAllocator(&get(), /*priority=*/1);
    return true;
  }();
  static_cast<void>(installed);
  return get();
}

int64_t CountingAllocator::Counter::add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  for (int64_t high = peak.load(std::memory_order_relaxed);
       now > high && !peak.compare_exchange_weak(high, now, std::memory_order_relaxed);) {
  }
  return now;
}

void CountingAllocator::add(Tag tag, int64_t bytes) {
  if (const int64_t cap = cap_.load(std::memory_order_relaxed); cap > 0 && bytes > 0 && live_bytes() + bytes > cap) {
    const std::string what = *current_name ? fmt::format("{} ({})", tag_name(tag), current_name) : tag_name(tag);
    throw unavailable_error("--memory-cap", fmt::format("{} asks for {}, over the cap of {}; {}", what, format_bytes(bytes), format_bytes(cap), summary()),
                            "a smaller --batch, more ranks to share the state, or a larger cap");
  }
  of(tag).add(bytes);
  const int64_t live = total_.add(bytes);
  if (recording_.load(std::memory_order_relaxed)) record(tag, bytes, live);
}

c10::DataPtr CountingAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
  const Tag tag = current_tag;
  add(tag, static_cast<int64_t>(bytes));
  void* block = nullptr;
  try {
    block = take(sizeof(Header) + bytes);
  } catch (...) {
    add(tag, -static_cast<int64_t>(bytes));
    throw;
  }
  auto* header = new (block) Header{this, static_cast<int64_t>(bytes), tag};
  void* data = header + 1;
  return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
}

void CountingAllocator::release(void* data) {
  if (!data) return;
  Header* header = header_of(data);
  header->owner->add(header->tag, -header->bytes);
  give(header, sizeof(Header) + static_cast<size_t>(header->bytes));
}

c10::DeleterFnPtr CountingAllocator::raw_deleter() const { return &release; }

void CountingAllocator::reset_peak() {
  total_.peak.store(live_bytes(), std::memory_order_relaxed);
  for (auto& counter : tags_) counter.peak.store(counter.live.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

int64_t CountingAllocator::retag(const torch::Tensor& tensor, Tag tag) {
  if (!tensor.defined() || !tensor.has_storage()) return 0;
  const auto& pointer = tensor.storage().data_ptr();
  if (!pointer.get_context() || pointer.get_deleter() != &release) return 0;
  Header* header = header_of(pointer.get_context());
  of(header->tag).add(-header->bytes);
  of(tag).add(header->bytes);
  header->tag = tag;
  return header->bytes;
}

void CountingAllocator::note(Tag tag, int64_t bytes) { add(tag, bytes); }

void CountingAllocator::record(Tag tag, int64_t bytes, int64_t live) {
  const std::lock_guard lock(events_mutex_);
  events_.push_back({now_s() - events_start_s_, tag, bytes, live});
}

void CountingAllocator::start_events() {
  const std::lock_guard lock(events_mutex_);
  events_.clear();
  events_start_s_ = now_s();
  recording_ = true;
}

std::vector<MemoryEvent> CountingAllocator::stop_events() {
  recording_ = false;
  const std::lock_guard lock(events_mutex_);
  return std::exchange(events_, {});
}

std::string CountingAllocator::summary() const {
  std::string text = format_bytes(live_bytes()) + " live";
  const char* separator = ": ";
  for (const Tag tag : all_tags) {
    if (live_bytes(tag) == 0) continue;
    text += fmt::format("{}{} {}", separator, tag_name(tag), format_bytes(live_bytes(tag)));
    separator = ", ";
  }
  return text;
}

}  // namespace manyranks
