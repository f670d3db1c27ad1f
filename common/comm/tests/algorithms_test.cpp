#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
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

// Numbers at which an order shows: both zeros, infinities, NaNs with sign and payload, sums that round.
std::vector<float> awkward(int rank, size_t count) {
  const float specials[] = {0.0f, -0.0f, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::bit_cast<float>(0x7fc00001u), std::bit_cast<float>(0xffc00002u), std::bit_cast<float>(0x7f800001u), 1e-40f};
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t digit = (i >> (3 * (rank % 3))) % 8;  // the first 512 elements: every combination on three neighbours
    data[i] = i < 512 ? specials[digit] : 1.0f / static_cast<float>(1 + (i * 31 + rank * 17) % 97) * (i % 2 ? 1.0f : -1.0f);
  }
  return data;
}

std::vector<uint32_t> bits_of(const std::vector<float>& data) {
  std::vector<uint32_t> bits(data.size());
  std::memcpy(bits.data(), data.data(), data.size() * sizeof(float));
  return bits;
}

TEST_P(AllReduce, SameBitsOnEveryRankWhateverTheNumbers) {
  const auto [index, algorithm, ranks, count_] = GetParam();
  const size_t count = count_ == 1000 ? 1500 : count_;
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
    Post post;
    std::vector<std::vector<uint32_t>> results(ranks);
    test::run_ranks(ranks, [&, algorithm = algorithm, ranks = ranks](int rank) {
      ThreadTransport net(post, first_ranks(ranks), rank);
      auto data = awkward(rank, count);
      algorithm(net, Buffer{data.data(), count, Dtype::float32}, op);
      results[rank] = bits_of(data);
    });
    for (int r = 1; r < ranks; ++r)
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(results[r][i], results[0][i]) << name_of(op) << ", element " << i << ", ranks " << r << " and 0 of " << ranks;
    if (op != ReduceOp::min && op != ReduceOp::max) continue;
    // min and max do not depend on the order at all: the same as a chain over the ranks.
    std::vector<std::vector<float>> inputs;
    std::vector<const void*> in;
    for (int r = 0; r < ranks; ++r) inputs.push_back(awkward(r, count));
    for (const auto& input : inputs) in.push_back(input.data());
    std::vector<float> expected(count);
    reduce(expected.data(), in.data(), ranks, count, Dtype::float32, op);
    ASSERT_EQ(results[0], bits_of(expected)) << name_of(op);
  }
}

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

// Every pattern that matters of each type, in both orders: one NaN, -0 below +0, and neither the order nor the place in the array shows.
template <class Bits>
void check_pairs(Dtype dtype, std::vector<Bits> patterns, Bits nan, Bits sign, Bits infinity) {
  const auto is_nan = [&](Bits bits) { return static_cast<Bits>(bits & ~sign) > infinity; };
  // Ordered as numbers, with -0 before +0.
  const auto key = [&](Bits bits) {
    const auto magnitude = static_cast<int64_t>(bits & ~sign);
    return bits & sign ? -magnitude - 1 : magnitude;
  };
  std::vector<Bits> a, b;
  for (const Bits x : patterns)
    for (const Bits y : patterns) a.push_back(x), b.push_back(y);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
    std::vector<Bits> ab = a, ba = b, alone(a.size());
    reduce_into(ab.data(), b.data(), a.size(), dtype, op);
    reduce_into(ba.data(), a.data(), a.size(), dtype, op);
    for (size_t i = 0; i < a.size(); ++i) {
      alone[i] = a[i];
      reduce_into(&alone[i], &b[i], 1, dtype, op);
    }
    for (size_t i = 0; i < a.size(); ++i) {
      const auto which = [&] { return ::testing::Message() << name_of(op) << " of " << name_of(dtype) << " 0x" << std::hex << +a[i] << " and 0x" << +b[i]; };
      ASSERT_EQ(ab[i], ba[i]) << which() << ": the order shows";
      ASSERT_EQ(ab[i], alone[i]) << which() << ": the place in the array shows";
      const bool a_is_less = key(a[i]) < key(b[i]);
      Bits expected = ab[i];  // of a sum or a product: checked elsewhere
      if (is_nan(a[i]) || is_nan(b[i]) || is_nan(ab[i])) expected = nan;  // also infinity - infinity, 0 * infinity
      else if (op == ReduceOp::min) expected = a_is_less ? a[i] : b[i];
      else if (op == ReduceOp::max) expected = a_is_less ? b[i] : a[i];
      ASSERT_EQ(ab[i], expected) << which();
    }
    // A chain of three to six says the same as one by one.
    for (int inputs = 3; inputs <= 6; ++inputs) {
      const size_t n = a.size();
      std::vector<std::vector<Bits>> data(inputs, std::vector<Bits>(n));
      for (int k = 0; k < inputs; ++k)
        for (size_t i = 0; i < n; ++i) data[k][i] = a[(i * (2 * k + 1) + 7 * k) % n];
      std::vector<const void*> in;
      for (const auto& input : data) in.push_back(input.data());
      std::vector<Bits> whole(n), one_by_one = data[0];
      reduce(whole.data(), in.data(), inputs, n, dtype, op);
      for (int k = 1; k < inputs; ++k) reduce_into(one_by_one.data(), data[k].data(), n, dtype, op);
      ASSERT_EQ(whole, one_by_one) << name_of(op) << " of " << inputs << " x " << name_of(dtype);
    }
  }
}

TEST(Reduce, OneNanAndMinusZeroBelowZeroInEveryType) {
  check_pairs<uint32_t>(Dtype::float32, {0, 0x80000000, 1, 0x80000001, 0x3f800000, 0xbf800000, 0x3f800001, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xff800001,
                                         0x7fc00000, 0xffc00000, 0x7fc00123, 0xffffffff, 0x7fffffff, 0x3e99999a}, 0x7fc00000, 0x80000000, 0x7f800000);
  constexpr uint64_t s = uint64_t{1} << 63, inf = uint64_t{0x7ff} << 52, quiet = uint64_t{1} << 51;
  check_pairs<uint64_t>(Dtype::float64, {0, s, 1, s | 1, uint64_t{0x3ff} << 52, s | uint64_t{0x3ff} << 52, inf - 1, s | (inf - 1), inf, s | inf, inf | 1, s | inf | 1, inf | quiet, s | inf | quiet,
                                         inf | quiet | 77, ~uint64_t{0}, 0x3fd3333333333333}, inf | quiet, s, inf);
  check_pairs<uint16_t>(Dtype::float16, {0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc00, 0x3c01, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xfc01, 0x7e00, 0xfe00, 0x7e12, 0xffff}, 0x7e00, 0x8000, 0x7c00);
  check_pairs<uint16_t>(Dtype::bfloat16, {0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x3f80, 0xbf80, 0x3f81, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0xff81, 0x7fc0, 0xffc0, 0x7fd2, 0xffff}, 0x7fc0, 0x8000, 0x7f80);
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
