#include "memory_meter.hpp"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {
struct Meter {  // one per thread: the library's own threads are not the learner
  bool on = false;
  int64_t live = 0, peak = 0;
};
thread_local constinit Meter meter;

void* take(std::size_t bytes, std::size_t alignment = 0) {
  void* data = alignment ? std::aligned_alloc(alignment, (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment) : std::malloc(std::max<std::size_t>(bytes, 1));
  if (!data) throw std::bad_alloc();
  if (meter.on) {
    meter.live += static_cast<int64_t>(malloc_usable_size(data));
    meter.peak = std::max(meter.peak, meter.live);
  }
  return data;
}

void give(void* data) noexcept {
  if (meter.on && data) meter.live -= static_cast<int64_t>(malloc_usable_size(data));
  std::free(data);
}
}  // namespace

void* operator new(std::size_t bytes) { return take(bytes); }
void* operator new[](std::size_t bytes) { return take(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return take(bytes, static_cast<std::size_t>(alignment)); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return take(bytes, static_cast<std::size_t>(alignment)); }
void operator delete(void* data) noexcept { give(data); }
void operator delete[](void* data) noexcept { give(data); }
void operator delete(void* data, std::size_t) noexcept { give(data); }
void operator delete[](void* data, std::size_t) noexcept { give(data); }
void operator delete(void* data, std::align_val_t) noexcept { give(data); }
void operator delete[](void* data, std::align_val_t) noexcept { give(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { give(data); }
void operator delete[](void* data, std::size_t, std::align_val_t) noexcept { give(data); }

namespace manyranks {
Metered::Metered() { meter = {true, 0, 0}; }
Metered::~Metered() { meter.on = false; }
int64_t Metered::peak() { return meter.peak; }
Metered::Pause::Pause() : was_(meter.on) { meter.on = false; }
Metered::Pause::~Pause() { meter.on = was_; }
}  // namespace manyranks
