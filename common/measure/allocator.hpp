// Counts every byte of CPU tensor memory, by what it is for. Bytes are those that tensors ask for, so that they match
// formulas exactly; oneDNN's scratch is seen too.
//
//   auto& memory = CountingAllocator::get();           // Process::start() has installed it
//   MemoryTag scope(Tag::parameters, "block 3");       // until the end of the scope, on this thread
//   auto weights = torch::empty({1024, 1024});         // 4 MiB of parameters
//   memory.live_bytes(Tag::parameters);
//
// Large blocks that are freed are kept for the next tensor of their size (block_cache.hpp); live and peak bytes do not count them.
// Backward runs on the calling thread (CPU), so a MemoryTag around backward() covers what it allocates.
#pragma once

#include <c10/core/Allocator.h>
#include <torch/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace manyranks {

enum class Tag : uint8_t { parameters, gradients, optimizer, activations, buffers, other };
inline constexpr std::array all_tags{Tag::parameters, Tag::gradients, Tag::optimizer, Tag::activations, Tag::buffers, Tag::other};
const char* tag_name(Tag tag);

// What this thread allocates from here to the end of the scope belongs to `tag`. Scopes nest. `name` says which tensor
// or layer in the message of a failed cap; it must outlive the scope (a literal, usually).
class MemoryTag {
 public:
  explicit MemoryTag(Tag tag, const char* name = "");
  ~MemoryTag();
  MemoryTag(const MemoryTag&) = delete;
  MemoryTag& operator=(const MemoryTag&) = delete;

 private:
  Tag previous_tag_;
  const char* previous_name_;
};

struct MemoryEvent {
  double at_s;    // since start_events()
  Tag tag;
  int64_t bytes;  // + allocated, - freed
  int64_t live;   // all tags, after it
};

class CountingAllocator final : public c10::Allocator {
 public:
  // LibTorch keeps a plain pointer to its allocator for good, and tensors may die after main(): hence one object per
  // process that is never destroyed. install() makes LibTorch allocate here; before it get() counts only
  // what is noted.
  static CountingAllocator& get();
  static CountingAllocator& install();  // may be called again; memory from before it is not counted

  int64_t live_bytes() const { return total_.live.load(std::memory_order_relaxed); }
  int64_t live_bytes(Tag tag) const { return of(tag).live.load(std::memory_order_relaxed); }
  int64_t peak_bytes() const { return total_.peak.load(std::memory_order_relaxed); }
  int64_t peak_bytes(Tag tag) const { return of(tag).peak.load(std::memory_order_relaxed); }  // of its own, not at the overall peak
  void reset_peak();  // peaks start again from what is live

  // Beyond this many live bytes an allocation throws exit 69, naming tag, request and what is live. 0: no cap.
  void set_cap(uint64_t bytes) { cap_.store(static_cast<int64_t>(bytes), std::memory_order_relaxed); }

  // Moves a tensor's whole storage to another tag. Returns the bytes moved: 0 if the memory is not from here.
  int64_t retag(const torch::Tensor& tensor, Tag tag);

  // Memory that does not come from LibTorch (shared segments): + when taken, - when given back.
  void note(Tag tag, int64_t bytes);

  void start_events();
  std::vector<MemoryEvent> stop_events();

  std::string summary() const;  // "12.0 MiB live: parameters 4.0 MiB, gradients 8.0 MiB"

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Counter {
    std::atomic<int64_t> live{0}, peak{0};
    int64_t add(int64_t bytes);  // returns what is live after it
  };
  CountingAllocator() = default;
  static void release(void* data);
  void add(Tag tag, int64_t bytes);
  void record(Tag tag, int64_t bytes, int64_t live);
  Counter& of(Tag tag) { return tags_[static_cast<size_t>(tag)]; }
  const Counter& of(Tag tag) const { return tags_[static_cast<size_t>(tag)]; }

  Counter total_;
  std::array<Counter, all_tags.size()> tags_;
  std::atomic<int64_t> cap_{0};
  std::atomic<bool> recording_{false};
  std::mutex events_mutex_;
  double events_start_s_ = 0;
  std::vector<MemoryEvent> events_;
};

}  // namespace manyranks
