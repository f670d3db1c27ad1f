// Exercise: make resume exact. Lesson: 01_single_gpu/03_data_loader.cpp (and --resume of 03_data_parallel/11_train.cpp)
//
// A job that is killed after 1,000 batches and goes on from its checkpoint must see the batches that it would have seen: the same samples,
// in the same order, with the same augmentation. If not, nobody can tell a bug from bad luck, and some samples are seen twice in an
// epoch while others are left out. The loader below is complete, except for what it saves and how it goes on.
#include "01_exact_resume.hpp"  // Loader, Checkpoint, Sample

using namespace manyranks;

namespace {
class ShardLoader final : public Loader {
 public:
  ShardLoader(int64_t samples, int64_t batch, int rank, int world_size, uint64_t seed)
      : samples_(samples), batch_(batch), rank_(rank), world_size_(world_size), seed_(seed), random_(seed * 1000 + static_cast<uint64_t>(rank)) {
    shuffle();
  }

  void next(std::vector<Sample>& batch) override {
    batch.clear();
    while (position_ < share() && static_cast<int64_t>(batch.size()) < batch_) batch.push_back({order_[position_++ * world_size_ + rank_], random_.next()});
    if (position_ < share()) return;
    ++epoch_;  // the next batch is the first one of a new order
    position_ = 0;
    shuffle();
  }

  Checkpoint save() const override {
    // <<< todo
    // What must be kept so that a new loader, on this rank, can go on where this one is?
    // <<< until then
    // return {epoch_, 0, 0};
    // <<< solution
    return {epoch_, position_, random_.state()};
    // >>>
  }

  void restore(const Checkpoint& checkpoint) override {
    // <<< todo
    // Go on from there. This object has just been made, or has been in use; either way the next batch is the one after save().
    // <<< until then
    // epoch_ = checkpoint.epoch;
    // <<< solution
    epoch_ = checkpoint.epoch;
    position_ = checkpoint.position;
    random_.set_state(checkpoint.random);
    shuffle();  // the order follows from seed and epoch: it need not be saved, but it must be made again
    // >>>
  }

 private:
  int64_t share() const { return (samples_ - rank_ + world_size_ - 1) / world_size_; }  // samples rank, rank + N, rank + 2N, ... of the order
  void shuffle() { order_ = shuffled(samples_, seed_ + static_cast<uint64_t>(epoch_) * 7919); }

  int64_t samples_, batch_;
  int rank_, world_size_;
  uint64_t seed_;
  int64_t epoch_ = 0, position_ = 0;
  Random random_;
  std::vector<int64_t> order_;
};
}  // namespace

Loader* manyranks::make_loader(int64_t samples, int64_t batch, int rank, int world_size, uint64_t seed) {
  return new ShardLoader(samples, batch, rank, world_size, seed);
}
