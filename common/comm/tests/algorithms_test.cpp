#include <gtest/gtest.h>

#include <numeric>

#include "comm/tests/thread_ranks.hpp"

namespace manyranks {
namespace {

using test::Post;
using test::ThreadTransport;
using Algorithm = void (*)(Transport&, const Buffer&, ReduceOp);

std::vector<int> first_ranks(int n) {
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

float value(int rank, size_t i) { return static_cast<float>((i * 7 + rank * 3) % 11); }
float sum_of(int ranks, size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value(r, i);
  return sum;
}
std::vector<float> filled(int rank, size_t count) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = value(rank, i);
  return data;
}

class AllReduce : public testing::TestWithParam<std::tuple<int, Algorithm, int, size_t>> {};

TEST_P(AllReduce, SumsOnEveryRank) {
  const auto [index, algorithm, ranks, count] = GetParam();
  Post post;
  test::run_ranks(ranks, [&, algorithm = algorithm, ranks = ranks, count = count](int rank) {
    ThreadTransport net(post, first_ranks(ranks), rank);
    auto data = filled(rank, count);
    algorithm(net, Buffer{data.data(), count, Dtype::float32}, ReduceOp::sum);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], sum_of(ranks, i)) << "element " << i << " on rank " << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Ring, AllReduce, testing::Combine(testing::Values(0), testing::Values(ring_all_reduce), testing::Values(1, 2, 3, 4, 5, 7, 8), testing::Values(0, 1, 3, 1000)));
INSTANTIATE_TEST_SUITE_P(RecursiveDoubling, AllReduce, testing::Combine(testing::Values(1), testing::Values(recursive_doubling_all_reduce), testing::Values(1, 2, 3, 4, 5, 7, 8), testing::Values(0, 1, 3, 1000)));
INSTANTIATE_TEST_SUITE_P(Rabenseifner, AllReduce, testing::Combine(testing::Values(2), testing::Values(rabenseifner_all_reduce), testing::Values(1, 2, 3, 4, 5, 7, 8), testing::Values(0, 1, 3, 1000)));

TEST(Algorithms, RingMovesTheFewestBytes) {
  Post post;
  constexpr int ranks = 4;
  constexpr size_t count = 1000;
  test::run_ranks(ranks, [&](int rank) {
    ThreadTransport net(post, first_ranks(ranks), rank);
    auto data = filled(rank, count);
    ring_all_reduce(net, Buffer{data.data(), count, Dtype::float32}, ReduceOp::sum);
    EXPECT_EQ(net.sent, 2 * (ranks - 1) * count / ranks * sizeof(float));
  });
}

TEST(Algorithms, TwoLevel) {
  constexpr int hosts = 3, local = 2;
  constexpr size_t count = 101;
  Post inside, between;
  test::run_ranks(hosts * local, [&](int rank) {
    const int host = rank / local, place = rank % local;
    ThreadTransport inner(inside, {host * local, host * local + 1}, place), outer(between, {place, place + local, place + 2 * local}, host);
    auto data = filled(rank, count);
    two_level_all_reduce(inner, outer, Buffer{data.data(), count, Dtype::float32}, ReduceOp::sum);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], sum_of(hosts * local, i));
  });
}

TEST(Algorithms, TreesFromEveryRoot) {
  for (const int ranks : {1, 2, 3, 5, 8})
    for (int root = 0; root < ranks; ++root) {
      Post post;
      test::run_ranks(ranks, [&](int rank) {
        ThreadTransport net(post, first_ranks(ranks), rank);
        auto data = filled(rank, 10);
        tree_reduce(net, Buffer{data.data(), data.size(), Dtype::float32}, ReduceOp::sum, root);
        for (size_t i = 0; rank == root && i < data.size(); ++i) ASSERT_EQ(data[i], sum_of(ranks, i));
        tree_broadcast(net, Buffer{data.data(), data.size(), Dtype::float32}, root);
        for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], sum_of(ranks, i));
      });
    }
}

TEST(Algorithms, AllToAllAndBarrier) {
  for (const int ranks : {1, 2, 3, 4}) {
    Post post;
    test::run_ranks(ranks, [&](int rank) {
      ThreadTransport net(post, first_ranks(ranks), rank);
      std::vector<int32_t> in(ranks), out(ranks);
      for (int r = 0; r < ranks; ++r) in[r] = rank * 100 + r;
      pairwise_all_to_all(net, reinterpret_cast<std::byte*>(out.data()), reinterpret_cast<const std::byte*>(in.data()), sizeof(int32_t));
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(out[r], r * 100 + rank);
      dissemination_barrier(net);
    });
  }
}

// Half: every bit pattern survives the way to float and back; sums round to nearest even.
TEST(Reduce, HalfConversionsAreExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool nan = (bits & 0x7fff) > 0x7c00;
    const uint16_t back = half_from_float(float_from_half(static_cast<uint16_t>(bits)));
    if (nan) ASSERT_GT(back & 0x7fff, 0x7c00);
    else ASSERT_EQ(back, bits);
  }
  EXPECT_EQ(float_from_half(0x3c00), 1.0f);
  EXPECT_EQ(float_from_half(0x0001), 0x1p-24f);
  EXPECT_EQ(half_from_float(65520.0f), 0x7c00);                 // rounds up to infinity
  EXPECT_EQ(half_from_float(65519.9f), 0x7bff);
  EXPECT_EQ(half_from_float(1.0f + 0x1p-11f), 0x3c00);          // a tie goes to even
  EXPECT_EQ(half_from_float(1.0f + 3 * 0x1p-11f), 0x3c02);
}

TEST(Reduce, AChainDoesNotDependOnChunksOrOnWhichInputIsTheOutput) {
  constexpr int inputs = 6;
  constexpr size_t count = 5000;
  std::vector<std::vector<float>> data(inputs, std::vector<float>(count));
  for (int k = 0; k < inputs; ++k)
    for (size_t i = 0; i < count; ++i) data[k][i] = 1.0f / static_cast<float>(i + 1) * static_cast<float>(k + 1) + 0.1f;
  std::vector<float> expected(count);
  for (size_t i = 0; i < count; ++i) {
    expected[i] = data[0][i];
    for (int k = 1; k < inputs; ++k) expected[i] += data[k][i];
  }
  for (int target = 0; target < inputs; ++target)
    for (const size_t chunk : {count, size_t{1}, size_t{777}}) {
      auto copy = data;
      for (size_t at = 0; at < count; at += chunk) {
        const void* in[inputs];
        for (int k = 0; k < inputs; ++k) in[k] = copy[k].data() + at;
        reduce(copy[target].data() + at, in, inputs, std::min(chunk, count - at), Dtype::float32, ReduceOp::sum);
      }
      ASSERT_EQ(copy[target], expected);
    }
}

}  // namespace
}  // namespace manyranks
