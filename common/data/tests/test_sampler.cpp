// Every sample exactly once per epoch, whatever the numbers; resumed in mid-epoch, also on another number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "data/sampler.hpp"
#include "launch/errors.hpp"

using namespace manyranks;
using Indices = std::vector<std::int64_t>;

namespace {

Indices sorted_union(std::int64_t size, int world, const SamplerOptions& options, const SamplerState& from) {
  Indices all;
  for (int rank = 0; rank < world; ++rank) {
    DistributedSampler sampler(size, rank, world, options);
    sampler.resume(from);
    all.insert(all.end(), sampler.indices().begin(), sampler.indices().end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(Sampler, EverySampleOnceForAnyNumbers) {
  for (std::int64_t block : {0, 1, 4})
    for (bool shuffle : {false, true})
      for (std::int64_t size : {0, 1, 2, 5, 16, 17, 31})
        for (int world : {1, 2, 3, 4, 7, 20}) {
          Indices expected(static_cast<std::size_t>(size));
          std::iota(expected.begin(), expected.end(), std::int64_t{0});
          ASSERT_EQ(sorted_union(size, world, {.seed = 5, .shuffle = shuffle, .block = block}, {2, 0, world}), expected) << size << " over " << world;
          std::size_t most = 0, fewest = 1000;
          for (int rank = 0; rank < world; ++rank) {
            DistributedSampler sampler(size, rank, world, {.block = block});
            most = std::max(most, sampler.indices().size());
            fewest = std::min(fewest, sampler.indices().size());
            ASSERT_EQ(sampler.batches(4), (static_cast<std::int64_t>((size + world - 1) / world) + 3) / 4);
          }
          ASSERT_LE(most - fewest, 1u);
        }
}

TEST(Sampler, ReshufflesByEpochAndSeed) {
  DistributedSampler a(1000, 0, 2), b(1000, 0, 2), c(1000, 0, 2, {.seed = 9});
  EXPECT_EQ(a.indices(), b.indices());
  EXPECT_NE(a.indices(), c.indices());
  b.start_epoch(1);
  EXPECT_NE(a.indices(), b.indices());
  a.start_epoch(1);
  EXPECT_EQ(a.indices(), b.indices());
  EXPECT_FALSE(std::is_sorted(a.indices().begin(), a.indices().end()));
}

TEST(Sampler, ResumesWhereItStood) {
  for (std::int64_t block : {0, 8})
    for (int world : {1, 3, 5})
      for (std::int64_t size : {50, 53})
        for (std::int64_t done : {0, 1, 2, 5}) {
          const std::int64_t batch = 4;
          for (int rank = 0; rank < world; ++rank) {
            DistributedSampler whole(size, rank, world, {.block = block}), resumed(size, rank, world, {.block = block});
            whole.start_epoch(3);
            resumed.resume(whole.state(done, batch));
            EXPECT_EQ(resumed.epoch(), 3);
            Indices rest = whole.indices();
            rest.erase(rest.begin(), rest.begin() + std::min<std::int64_t>(done * batch, static_cast<std::int64_t>(rest.size())));
            ASSERT_EQ(resumed.indices(), rest) << "rank " << rank << " of " << world << ", size " << size << ", block " << block;
            ASSERT_EQ(resumed.batches(batch), std::max<std::int64_t>(0, whole.batches(batch) - done));
          }
        }
}

TEST(Sampler, ResumesOnAnotherNumberOfRanks) {
  const std::int64_t size = 101, batch = 3;
  Indices seen;  // 4 ranks, 5 batches each; then 3 ranks, 4 batches; then 7 ranks to the end
  SamplerState state{2, 0, 4};
  auto train = [&](int world, std::int64_t batches) {
    SamplerState after;
    for (int rank = 0; rank < world; ++rank) {
      DistributedSampler sampler(size, rank, world);
      sampler.resume(state);
      const auto take = std::min<std::int64_t>(batches * batch, static_cast<std::int64_t>(sampler.indices().size()));
      seen.insert(seen.end(), sampler.indices().begin(), sampler.indices().begin() + take);
      after = sampler.state(batches, batch);
    }
    state = after;
  };
  train(4, 5);
  EXPECT_EQ(state, (SamplerState{2, 60, 4}));
  train(3, 4);
  train(7, 100);
  EXPECT_EQ(state.position, size);
  std::sort(seen.begin(), seen.end());
  Indices expected(static_cast<std::size_t>(size));
  std::iota(expected.begin(), expected.end(), std::int64_t{0});
  EXPECT_EQ(seen, expected);
}

TEST(Sampler, RefusesWhatItCannotResume) {
  DistributedSampler blocks(100, 0, 2, {.block = 10}), small(10, 0, 2);
  EXPECT_THROW(blocks.resume({1, 40, 4}), Error);
  EXPECT_NO_THROW(blocks.resume({1, 0, 4}));
  EXPECT_THROW(small.resume({0, 11, 2}), Error);
  EXPECT_THROW(DistributedSampler(10, 2, 2), Error);
}

TEST(Sampler, BlocksStayTogether) {
  DistributedSampler sampler(64, 1, 2, {.block = 8});
  for (std::size_t i = 0; i < sampler.indices().size(); ++i) EXPECT_EQ(sampler.indices()[i] / 8, sampler.indices()[i / 8 * 8] / 8);
}

}  // namespace
