// What the two files of HostGroup share: the layout of its shared memory, and how an array is cut.
#pragma once

#include <algorithm>

#include "comm/host_group.hpp"

namespace manyranks {

constexpr size_t page = 4096;
inline size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// What a rank shows to its peers. Two prints, used in turn: a rank that is one call ahead must not overwrite what a slow peer
// still compares; it cannot be two ahead.
struct HostGroup::Control {
  struct Print {
    uint64_t sequence, kind, count, in_place, out_place;
  };
  alignas(64) std::atomic<uint64_t> step;
  Print print[2];
  alignas(64) Doorbell bell;
};

// One slice per rank: whole elements, and whole cache lines, so that no two ranks write to one.
struct Slices {
  Slices(size_t count, int ranks, size_t element) : count_(count), each_(round_up((count + ranks - 1) / ranks, std::max<size_t>(1, 64 / element))) {}
  // The same cuts over fewer elements.
  Slices first(size_t count) const {
    Slices fewer = *this;
    fewer.count_ = count;
    return fewer;
  }
  size_t begin(int rank) const { return std::min(count_, rank * each_); }
  size_t size(int rank) const { return begin(rank + 1) - begin(rank); }

 private:
  size_t count_, each_;
};

}  // namespace manyranks
