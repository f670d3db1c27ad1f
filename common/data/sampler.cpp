#include "data/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "data/random.hpp"    // Random
#include "launch/errors.hpp"  // usage_error

namespace manyranks {

DistributedSampler::DistributedSampler(std::int64_t size, int rank, int world_size, SamplerOptions options)
    : size_(size), rank_(rank), world_size_(world_size), options_(options) {
  if (size < 0 || world_size < 1 || rank < 0 || rank >= world_size || options.block < 0)
    throw usage_error("sampler", fmt::format("{} samples, rank {} of {}, blocks of {}", size, rank, world_size, options.block));
  start_epoch(0);
}

std::vector<std::int64_t> DistributedSampler::order() const {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size_));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!options_.shuffle) return order;
  Random random(options_.seed, 0x5a3b1e, static_cast<std::uint64_t>(epoch_));
  if (options_.block == 0) {
    random.shuffle(order.data(), order.size());
    return order;
  }
  std::vector<std::int64_t> blocks(static_cast<std::size_t>((size_ + options_.block - 1) / options_.block));
  std::iota(blocks.begin(), blocks.end(), std::int64_t{0});
  random.shuffle(blocks.data(), blocks.size());
  std::int64_t* place = order.data();
  for (std::int64_t block : blocks) {
    const std::int64_t begin = block * options_.block, end = std::min(begin + options_.block, size_);
    std::iota(place, place + (end - begin), begin);
    random.shuffle(place, static_cast<std::size_t>(end - begin));
    place += end - begin;
  }
  return order;
}

void DistributedSampler::deal() {
  const auto all = order();
  indices_.clear();
  if (options_.block == 0) {
    for (std::int64_t i = position_ + rank_; i < size_; i += world_size_) indices_.push_back(all[static_cast<std::size_t>(i)]);
    return;
  }
  // Stretches: the first size % world_size ranks have one sample more. `position_` is the same number of samples from each.
  const std::int64_t share = size_ / world_size_, extra = size_ % world_size_;
  const std::int64_t begin = rank_ * share + std::min<std::int64_t>(rank_, extra), end = begin + share + (rank_ < extra ? 1 : 0);
  const std::int64_t done = (position_ + world_size_ - 1) / world_size_;
  indices_.assign(all.begin() + std::min(begin + done, end), all.begin() + end);
}

void DistributedSampler::start_epoch(std::int64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
  deal();
}

void DistributedSampler::resume(const SamplerState& state) {
  if (state.epoch < 0 || state.position < 0 || state.position > size_)
    throw usage_error("resume sampler", fmt::format("position {} of epoch {} in {} samples", state.position, state.epoch, size_),
                      "the checkpoint belongs to another data set");
  if (options_.block > 0 && state.position > 0 && state.world_size != world_size_)
    throw usage_error("resume sampler", fmt::format("the checkpoint was written in mid-epoch by {} ranks, this job has {}", state.world_size, world_size_),
                      "with blocks, resume on as many ranks, or from the end of an epoch");
  epoch_ = state.epoch;
  position_ = state.position;
  deal();
}

std::int64_t DistributedSampler::batches(std::int64_t batch) const {
  const std::int64_t most = (size_ - position_ + world_size_ - 1) / world_size_;  // of the rank that has most
  return (most + batch - 1) / batch;
}

SamplerState DistributedSampler::state(std::int64_t batches_done, std::int64_t batch) const {
  return {epoch_, std::min(size_, position_ + batches_done * batch * world_size_), world_size_};
}

}  // namespace manyranks
