#include "measure/block_cache.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <thread>
#include <vector>

namespace manyranks {
namespace {

constexpr size_t MiB = size_t{1} << 20;

// Two blocks in use at once, then both given back, `first` first: what the cache keeps when a test begins.
struct Two {
  Two(BlockCache& cache, size_t first_bytes, size_t second_bytes) : first(cache.take(first_bytes)), second(cache.take(second_bytes)) {
    cache.give(first, first_bytes);
    cache.give(second, second_bytes);
  }
  void *const first, *const second;
};

TEST(BlockCache, GivesTheSameBlockAgainForTheSameSize) {
  BlockCache cache;
  void* first = cache.take(3 * MiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  cache.give(first, 3 * MiB);
  EXPECT_EQ(cache.kept_bytes(), 3 * MiB);
  void* second = cache.take(3 * MiB - 1000);  // rounded up, it is the same
  EXPECT_EQ(second, first);
  EXPECT_EQ(cache.kept_bytes(), 0u);
  cache.give(second, 3 * MiB - 1000);
}

TEST(BlockCache, RoundsUpByAnEighthAtMostAndToSizesThatHold) {
  for (size_t bytes = 1; bytes < (size_t{1} << 34); bytes = bytes * 17 / 16 + 1) {
    const size_t rounded = BlockCache::rounded(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_LE(rounded, bytes + bytes / 8);
    EXPECT_EQ(BlockCache::rounded(rounded), rounded) << bytes;
  }
}

TEST(BlockCache, NeighbouringSizesDoNotShareBlocks) {
  BlockCache cache;
  const Two kept(cache, 8 * MiB, 9 * MiB);
  void* again = cache.take(9 * MiB);
  EXPECT_EQ(again, kept.second);
  void* other = cache.take(8 * MiB);
  EXPECT_EQ(other, kept.first);
  cache.give(again, 9 * MiB);
  cache.give(other, 8 * MiB);
}

TEST(BlockCache, KeepsNoMoreThanWasOnceInUse) {
  BlockCache cache;
  const Two kept(cache, 4 * MiB, 4 * MiB);
  EXPECT_EQ(cache.kept_bytes(), 8 * MiB);
  void* c = cache.take(5 * MiB);  // 8 were once in use: 3 may be kept beside these 5, and no block is that small
  EXPECT_EQ(cache.kept_bytes(), 0u);
  cache.give(c, 5 * MiB);
  void* d = cache.take(3 * MiB);
  EXPECT_EQ(cache.kept_bytes(), 5 * MiB);
  cache.give(d, 3 * MiB);
}

TEST(BlockCache, TheOldestGoesFirst) {
  BlockCache cache;
  const Two kept(cache, 2 * MiB, 4 * MiB);
  void* third = cache.take(1 * MiB);
  EXPECT_EQ(cache.kept_bytes(), 4 * MiB);  // 6 in all: the first had to go, though the second alone would have done
  void* again = cache.take(4 * MiB);
  EXPECT_EQ(again, kept.second);
  cache.give(third, 1 * MiB);
  cache.give(again, 4 * MiB);
}

TEST(BlockCache, TheOldestOfItsSizeGoesFirstToo) {
  BlockCache cache;
  const Two kept(cache, 2 * MiB, 2 * MiB);
  void* other = cache.take(1 * MiB);
  EXPECT_EQ(cache.kept_bytes(), 2 * MiB);
  void* again = cache.take(2 * MiB);
  EXPECT_EQ(again, kept.second);
  cache.give(other, 1 * MiB);
  cache.give(again, 2 * MiB);
}

TEST(BlockCache, SmallBlocksStayWithMalloc) {
  BlockCache cache;
  void* block = cache.take(BlockCache::least - 1);
  cache.give(block, BlockCache::least - 1);
  EXPECT_EQ(cache.kept_bytes(), 0u);
}

TEST(BlockCache, ManyThreadsNeverShareABlock) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 500; ++i) {
        const size_t bytes = BlockCache::least << (i % 3);
        auto* block = static_cast<volatile int*>(cache.take(bytes));
        block[0] = t * 1000 + i;
        block[bytes / sizeof(int) - 1] = t * 1000 + i;
        std::this_thread::yield();
        EXPECT_EQ(block[0], t * 1000 + i);
        EXPECT_EQ(block[bytes / sizeof(int) - 1], t * 1000 + i);
        cache.give(const_cast<int*>(block), bytes);
      }
    });
  for (auto& thread : threads) thread.join();
  cache.flush();
  EXPECT_EQ(cache.kept_bytes(), 0u);
}

#ifndef MANYRANKS_SANITIZE  // a sanitizer's shadow memory is far larger than any limit
size_t address_space() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

[[noreturn]] void take_more_than_the_limit_grants() {
  BlockCache cache;
  const Two kept(cache, 256 * MiB, 256 * MiB);
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = address_space() - 256 * MiB + 32 * MiB;  // the first has to go by the rule above; 192 MiB need the second to go, too
  setrlimit(RLIMIT_AS, &limit);
  static_cast<void>(cache.take(192 * MiB));
  if (cache.kept_bytes() != 0) _exit(2);
  try {
    static_cast<void>(cache.take(1024 * MiB));
  } catch (const std::exception&) {
    _exit(0);
  }
  _exit(3);
}

TEST(BlockCache, GivesBackWhatItKeepsBeforeItFails) { EXPECT_EXIT(take_more_than_the_limit_grants(), testing::ExitedWithCode(0), ""); }
#endif

}  // namespace
}  // namespace manyranks
