#include "measure/block_cache.hpp"

#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>

namespace manyranks {
namespace {

constexpr size_t huge_page = size_t{1} << 21;

// One page table entry for 2 MiB in place of 512. Only advice: a kernel that refuses it leaves the block as good as before.
void* fresh_block(size_t size) {
  void* block = c10::alloc_cpu(size);
  const auto from = (reinterpret_cast<uintptr_t>(block) + huge_page - 1) / huge_page * huge_page;
  const auto to = (reinterpret_cast<uintptr_t>(block) + size) / huge_page * huge_page;
  if (from < to) static_cast<void>(madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE));
  return block;
}

}  // namespace

size_t BlockCache::rounded(size_t bytes) {
  if (bytes < least) return bytes;
  const size_t step = std::bit_floor(bytes) / steps;
  return (bytes + step - 1) / step * step;
}

size_t BlockCache::class_of(size_t rounded_bytes) {
  const size_t power = std::bit_width(rounded_bytes) - 1;
  return (power - least_power) * steps + rounded_bytes / (std::bit_floor(rounded_bytes) / steps) % steps;
}

void* BlockCache::take(size_t bytes) {
  if (bytes < least) return c10::alloc_cpu(bytes);
  const size_t size = rounded(bytes);
  if (void* block = reuse(size)) return block;
  try {
    return fresh_block(size);
  } catch (const c10::Error&) {  // out of memory, or of what the cgroup or ulimit grants
    flush();
  }
  try {
    return fresh_block(size);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    in_use_ -= size;
    throw;
  }
}

// Counts the block as in use, whether or not one was kept.
void* BlockCache::reuse(size_t size) {
  const std::lock_guard lock(mutex_);
  in_use_ += size;
  auto& same = by_class_[class_of(size)];
  void* block = nullptr;
  if (!same.empty()) {  // the one used last: most of it may still be in the processor's cache
    block = same.back()->block;
    by_age_.erase(same.back());
    same.pop_back();
    kept_ -= size;
  }
  most_in_use_ = std::max(most_in_use_, in_use_);
  while (kept_ + in_use_ > most_in_use_) drop_oldest();
  return block;
}

void BlockCache::give(void* block, size_t bytes) {
  if (bytes < least) return c10::free_cpu(block);
  const size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  in_use_ -= size;
  by_age_.push_back({block, size});
  by_class_[class_of(size)].push_back(std::prev(by_age_.end()));
  kept_ += size;
}

void BlockCache::drop_oldest() {
  const Kept oldest = by_age_.front();
  by_class_[class_of(oldest.bytes)].pop_front();  // the oldest of all is the oldest of its size
  by_age_.pop_front();
  kept_ -= oldest.bytes;
  c10::free_cpu(oldest.block);
}

void BlockCache::flush() {
  const std::lock_guard lock(mutex_);
  while (!by_age_.empty()) drop_oldest();
}

size_t BlockCache::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace manyranks
