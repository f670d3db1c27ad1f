#pragma once

#include "kit.hpp"

namespace manyranks {

struct Sample {
  int64_t index;   // which sample of the data set
  uint64_t crop;   // the random number that its augmentation was drawn with
  bool operator==(const Sample&) const = default;
};

// All that a checkpoint keeps of a loader. Three numbers are enough; the order of an epoch is not among them.
struct Checkpoint {
  int64_t epoch = 0;
  int64_t position = 0;
  uint64_t random = 0;
};

class Loader {
 public:
  virtual ~Loader() = default;
  virtual void next(std::vector<Sample>& batch) = 0;
  virtual Checkpoint save() const = 0;
  virtual void restore(const Checkpoint& checkpoint) = 0;
};

// The loader of one rank: every rank sees its own share of the samples. Epoch e (0, 1, ...) goes through shuffled(samples, seed + 7919 e); rank r takes
// places r, r + N, r + 2N, ... of it, `batch` at a time (the last batch of an epoch may be smaller, and none is empty), and draws one crop per
// sample, in this order, from one Random(seed * 1000 + r) that goes on through all epochs.
extern "C" Loader* make_loader(int64_t samples, int64_t batch, int rank, int world_size, uint64_t seed);

}  // namespace manyranks
