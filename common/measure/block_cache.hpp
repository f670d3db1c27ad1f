// Keeps freed blocks of memory for the next one that asks for the same size, as LibTorch does on GPUs and not on CPUs.
// There every large tensor goes back to the kernel when it dies, and the kernel clears each page of the next one before it hands it out:
// a training step asks for the same sizes again and again, and a tenth of a small transformer's step went into that.
//
//   BlockCache cache;
//   void* block = cache.take(bytes);   // 64-byte aligned, not cleared
//   cache.give(block, bytes);          // the same bytes; kept
//
// In use and kept together never exceed the most that was in use at once: a program keeps what it has needed anyway.
// Blocks that lay unused longest go back to the kernel first.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <list>
#include <mutex>

namespace manyranks {

class BlockCache {
 public:
  BlockCache() = default;
  ~BlockCache() { flush(); }
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  void* take(size_t bytes);              // throws as LibTorch's own allocator does, after giving back all that is kept
  void give(void* block, size_t bytes);
  void flush();

  size_t kept_bytes() const;
  static size_t rounded(size_t bytes);   // what a block of `bytes` really has: up to an eighth more

  static constexpr size_t least_power = 18, least = size_t{1} << least_power;  // smaller blocks stay with malloc, which keeps them itself

 private:
  struct Kept {
    void* block;
    size_t bytes;  // rounded
  };
  using ByAge = std::list<Kept>;                                             // oldest first
  static constexpr size_t steps = 8, classes = (64 - least_power) * steps;   // eight sizes to each power of two
  static size_t class_of(size_t rounded_bytes);
  void* reuse(size_t size);
  void drop_oldest();

  mutable std::mutex mutex_;
  ByAge by_age_;
  std::array<std::deque<ByAge::iterator>, classes> by_class_;                // oldest first, too
  size_t kept_ = 0, in_use_ = 0, most_in_use_ = 0;
};

}  // namespace manyranks
