// Which samples are mine: every sample exactly once per epoch, over all ranks, for any number of both.
#pragma once

#include <cstdint>
#include <vector>

namespace manyranks {

// Where training stands, for a checkpoint. Equal on all ranks: `position` counts samples over all of them.
struct SamplerState {
  std::int64_t epoch = 0, position = 0;
  int world_size = 0;
  bool operator==(const SamplerState&) const = default;
};

struct SamplerOptions {
  std::uint64_t seed = 1;
  bool shuffle = true;
  // 0: any sample may follow any other. b > 0: runs of b neighbours stay together (in shuffled order), and a rank gets
  // whole stretches of runs, so that shard files are read in long pieces.
  std::int64_t block = 0;
};

// Nothing is padded and nothing dropped: shares differ by at most one sample, and a rank may have none. All ranks still
// make the same number of steps (batches()): one that has run out takes part with a smaller or an empty batch.
//
// Without blocks the epoch's permutation is dealt like cards: rank r of w gets places r, r+w, r+2w ... After k samples
// per rank, the first k*w places are used up, so the rest can be dealt anew to another number of ranks.
class DistributedSampler {
 public:
  DistributedSampler(std::int64_t size, int rank, int world_size, SamplerOptions options = {});

  void start_epoch(std::int64_t epoch);    // from its first sample
  void resume(const SamplerState& state);  // in mid-epoch; another world size is a usage_error if there are blocks

  std::int64_t epoch() const { return epoch_; }
  const std::vector<std::int64_t>& indices() const { return indices_; }  // mine, in order, from where we stand
  std::int64_t batches(std::int64_t batch) const;                        // steps left in this epoch, the same on all ranks
  // Where all ranks stand once `batches_done` batches of `batch` were trained on since start_epoch() or resume().
  SamplerState state(std::int64_t batches_done, std::int64_t batch) const;

 private:
  std::vector<std::int64_t> order() const;  // the whole epoch, all ranks: equal on all of them
  void deal();

  std::int64_t size_, epoch_ = 0, position_ = 0;
  int rank_, world_size_;
  SamplerOptions options_;
  std::vector<std::int64_t> indices_;
};

}  // namespace manyranks
