// Every operation, dtype and awkward size, on whatever backend and number of ranks this was started with. Most inputs are small
// integers, so that every sum is exact in every dtype and results can be compared bit by bit; numbers that round, and those that are
// none, have tests of their own.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

#include "comm/tests/rank_main.hpp"

namespace manyranks {
namespace {

using test::world;

const torch::ScalarType dtypes[] = {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16, torch::kInt32, torch::kInt64, torch::kUInt8, torch::kBool};
const int64_t sizes[] = {0, 1, 2, 3, 1023, (1 << 20) + 1};

// Values 0..4 by rank and position; for bool 0 or 1.
torch::Tensor values(int64_t count, torch::ScalarType dtype, int rank, int salt = 0) {
  const int64_t period = dtype == torch::kBool ? 2 : 5;
  static std::map<int64_t, torch::Tensor> patterns;  // a remainder per element costs more than all that is tested here
  auto& pattern = patterns[period];
  if (!pattern.defined() || pattern.numel() < count + period) pattern = (torch::arange(count + period, torch::kInt64) % period).to(torch::kUInt8);
  return pattern.narrow(0, (3 * rank + salt) % period, count).to(dtype, /*non_blocking=*/false, /*copy=*/true);
}

torch::Tensor expected_sum(int64_t count, torch::ScalarType dtype, int salt = 0) {
  auto sum = torch::zeros(count, torch::kInt64);
  for (int r = 0; r < world().size(); ++r) sum += values(count, dtype, r, salt).to(torch::kInt64);
  return dtype == torch::kBool ? sum > 0 : sum.to(dtype);
}

bool same_on_every_rank(const torch::Tensor& tensor) {
  const auto bits = tensor.contiguous().view(torch::kUInt8);
  auto all = torch::zeros({world().size(), bits.numel()}, torch::kUInt8);
  world().all_gather(all, bits);
  return (all == bits).all().item<bool>();
}

class Collectives : public testing::TestWithParam<std::tuple<torch::ScalarType, int64_t>> {
 protected:
  torch::ScalarType dtype() const { return std::get<0>(GetParam()); }
  int64_t count() const { return std::get<1>(GetParam()); }
  torch::Tensor mine(int salt = 0) const { return values(count(), dtype(), world().rank(), salt); }
  torch::Tensor empty(int64_t n) const { return torch::full({n}, 1, dtype()); }
  int rank() const { return world().rank(); }
  int size() const { return world().size(); }
};

#define EXPECT_SAME(a, b) EXPECT_TRUE(torch::equal(a, b)) << "rank " << world().rank() << ": " << (a).flatten().slice(0, 0, 8) << " against " << (b).flatten().slice(0, 0, 8)

TEST_P(Collectives, AllReduceInPlaceAndOutOfPlace) {
  auto inout = mine();
  world().all_reduce(inout);
  EXPECT_SAME(inout, expected_sum(count(), dtype()));
  auto in = mine(1), out = empty(count()), before = in.clone();
  world().all_reduce(out, in);
  EXPECT_SAME(out, expected_sum(count(), dtype(), 1));
  EXPECT_SAME(in, before);
}

TEST_P(Collectives, AllReduceOtherOperations) {
  for (const ReduceOp op : {ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
    auto inout = mine();
    world().all_reduce(inout, op);
    auto expected = values(count(), dtype(), 0);
    for (int r = 1; r < size(); ++r) {
      const auto other = values(count(), dtype(), r);
      if (op == ReduceOp::product) expected = dtype() == torch::kBool ? expected.logical_and(other) : expected * other;
      if (op == ReduceOp::min) expected = torch::minimum(expected, other);
      if (op == ReduceOp::max) expected = torch::maximum(expected, other);
    }
    EXPECT_SAME(inout, expected);
  }
}

TEST_P(Collectives, AllGather) {
  auto out = empty(count() * size());
  world().all_gather(out, mine());
  for (int r = 0; r < size(); ++r) EXPECT_SAME(out.slice(0, r * count(), (r + 1) * count()), values(count(), dtype(), r));
  auto inside = empty(count() * size());
  auto part = inside.slice(0, rank() * count(), (rank() + 1) * count());
  part.copy_(mine());
  world().all_gather(inside, part);
  EXPECT_SAME(inside, out);
}

TEST_P(Collectives, ReduceScatter) {
  const int64_t part = count() / size();
  auto in = values(part * size(), dtype(), rank()), out = empty(part);
  world().reduce_scatter(out, in);
  EXPECT_SAME(out, expected_sum(part * size(), dtype()).slice(0, rank() * part, (rank() + 1) * part));
}

TEST_P(Collectives, Broadcast) {
  for (int root = 0; root < size(); ++root) {
    auto inout = mine();
    world().broadcast(inout, root);
    EXPECT_SAME(inout, values(count(), dtype(), root));
  }
}

TEST_P(Collectives, Reduce) {
  const int root = size() - 1;
  auto in = mine(), out = empty(count()), before = in.clone();
  world().reduce(rank() == root ? out : torch::Tensor(), in, root);
  if (rank() == root) {
    EXPECT_SAME(out, expected_sum(count(), dtype()));
  }
  EXPECT_SAME(in, before);
}

TEST_P(Collectives, GatherAndScatter) {
  const int root = size() / 2;
  auto all = rank() == root ? empty(count() * size()) : torch::Tensor();
  world().gather(all, mine(), root);
  for (int r = 0; rank() == root && r < size(); ++r) EXPECT_SAME(all.slice(0, r * count(), (r + 1) * count()), values(count(), dtype(), r));
  auto part = empty(count());
  world().scatter(part, all, root);
  EXPECT_SAME(part, mine());
}

TEST_P(Collectives, AllToAll) {
  auto in = empty(count() * size()), out = empty(count() * size());
  for (int to = 0; to < size(); ++to) in.slice(0, to * count(), (to + 1) * count()).copy_(values(count(), dtype(), rank(), to));
  world().all_to_all(out, in);
  for (int from = 0; from < size(); ++from) EXPECT_SAME(out.slice(0, from * count(), (from + 1) * count()), values(count(), dtype(), from, rank()));
}

TEST_P(Collectives, SendAndReceiveAroundARing) {
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  auto out = empty(count()), in = mine();
  auto sent = world().send_async(in, next, 7);
  world().recv(out, previous, 7);
  sent.wait();
  EXPECT_SAME(out, values(count(), dtype(), previous));
}

TEST_P(Collectives, RegisteredMemory) {
  auto registered = world().allocate({count() * size() + 8}, dtype());
  auto part = registered.slice(0, 3, 3 + count());  // a view somewhere inside
  part.copy_(mine());
  world().all_reduce(part);
  EXPECT_SAME(part, expected_sum(count(), dtype()));

  const int64_t share = count() / size();
  auto whole = registered.slice(0, 1, 1 + share * size());
  whole.copy_(values(share * size(), dtype(), rank()));
  auto out = empty(share);
  world().reduce_scatter(out, whole);
  EXPECT_SAME(out, expected_sum(share * size(), dtype()).slice(0, rank() * share, (rank() + 1) * share));
  auto own = whole.slice(0, rank() * share, (rank() + 1) * share);
  world().reduce_scatter(own, whole);
  EXPECT_SAME(own, out);
  world().all_gather(whole, own);
  EXPECT_SAME(whole, expected_sum(share * size(), dtype()));

  part.copy_(mine(2));
  world().broadcast(part, size() - 1);
  EXPECT_SAME(part, values(count(), dtype(), size() - 1, 2));

  // Registered on some ranks only, or at different places: slower, still right.
  auto mixed = rank() % 2 ? mine() : part;
  mixed.copy_(mine());
  world().all_reduce(mixed);
  EXPECT_SAME(mixed, expected_sum(count(), dtype()));
  auto shifted = registered.slice(0, rank(), rank() + count());
  shifted.copy_(mine());
  world().all_reduce(shifted);
  EXPECT_SAME(shifted, expected_sum(count(), dtype()));
}

std::string parameter_name(const testing::TestParamInfo<std::tuple<torch::ScalarType, int64_t>>& info) {
  return std::string(c10::toString(std::get<0>(info.param))) + "_" + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Every, Collectives, testing::Combine(testing::ValuesIn(dtypes), testing::ValuesIn(sizes)), parameter_name);

TEST(Communicator, FloatSumsAreInRankOrderWhateverTheWay) {
  const bool one_host = world().transport() == "shared memory" || world().size() == 1;
  for (const int64_t count : {5, 1000, 100'003, 1 << 20}) {
    std::vector<torch::Tensor> inputs;
    for (int r = 0; r < world().size(); ++r) {
      torch::manual_seed(100 + r);
      inputs.push_back(torch::randn(count));
    }
    auto expected = inputs[0].clone(), exact = inputs[0].to(torch::kFloat64), magnitude = exact.abs();
    for (int r = 1; r < world().size(); ++r) {
      expected += inputs[r];
      exact += inputs[r].to(torch::kFloat64);
      magnitude += inputs[r].abs();
    }
    // Between hosts another order, but the same bits everywhere; each of size - 1 additions rounds by half a unit at most.
    const auto check = [&](const torch::Tensor& result) {
      if (one_host) {
        EXPECT_SAME(result, expected);
      }
      EXPECT_TRUE(same_on_every_rank(result));
      const auto bound = magnitude * ((world().size() - 1) * std::numeric_limits<float>::epsilon() / 2 * 1.001);
      EXPECT_TRUE(((result.to(torch::kFloat64) - exact).abs() <= bound).all().item<bool>());
    };
    auto plain = inputs[world().rank()].clone();
    world().all_reduce(plain);
    check(plain);
    auto registered = world().allocate({count}, torch::kFloat32);
    registered.copy_(inputs[world().rank()]);
    world().all_reduce(registered);
    check(registered);
  }
}

TEST(Communicator, SameBitsOnEveryRankWhateverTheNumbers) {
  // Three neighbours meet in every combination of these: zeros, infinities, NaNs with signs and payloads, numbers that round.
  const auto specials = torch::tensor(std::vector<double>{0.0, -0.0, INFINITY, -INFINITY, NAN, -NAN, 1.0 / 3, 2.0}, torch::kFloat64);
  for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16})
    for (const int64_t count : {512, 1 << 16})
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
        const auto of = [&](int rank) {
          const auto digit = torch::arange(count, torch::kInt64).bitwise_right_shift(torch::tensor(3 * (rank % 3), torch::kInt64)).remainder(8);
          return specials.index_select(0, digit).to(dtype);
        };
        auto mine = of(world().rank());
        world().all_reduce(mine, op);
        EXPECT_TRUE(same_on_every_rank(mine)) << name_of(op) << " " << c10::toString(dtype) << " x " << count;
        auto expected = of(0);
        for (int r = 1; r < world().size(); ++r) {
          if (op == ReduceOp::sum) expected = expected + of(r);
          if (op == ReduceOp::product) expected = expected * of(r);
          if (op == ReduceOp::min) expected = torch::minimum(expected, of(r));
          if (op == ReduceOp::max) expected = torch::maximum(expected, of(r));
        }
        // What the numbers are, NaN apart from its bits; finite sums by tolerance, as their order differs between hosts.
        EXPECT_TRUE(torch::allclose(mine.to(torch::kFloat64), expected.to(torch::kFloat64), 0.02, 1e-6, /*equal_nan=*/true)) << name_of(op) << " " << c10::toString(dtype);
      }
}

TEST(Communicator, TwoAsynchronousCallsInFlightAndWaitsOutOfOrder) {
  for (const int64_t count : {10, 500'000}) {
    auto a = values(count, torch::kFloat32, world().rank()), b = values(count, torch::kFloat32, world().rank(), 1), c = values(count, torch::kFloat32, world().rank(), 2);
    auto first = world().all_reduce_async(a);
    auto second = world().all_reduce_async(b);
    world().all_reduce(c);  // waits for its turn
    second.wait();
    first.wait();
    first.wait();
    EXPECT_TRUE(first.done());
    EXPECT_SAME(a, expected_sum(count, torch::kFloat32));
    EXPECT_SAME(b, expected_sum(count, torch::kFloat32, 1));
    EXPECT_SAME(c, expected_sum(count, torch::kFloat32, 2));
  }
}

TEST(Communicator, MessagesInEitherOrderBesideACollective) {
  const int size = world().size(), rank = world().rank();
  const int64_t count = 1'200'000;  // 4.8 MB: larger than the ring of a pair of 2 ranks
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  std::vector<torch::Tensor> in, out;
  std::vector<Work> works;
  for (int tag = 0; tag < 4; ++tag) {
    in.push_back(values(count + tag, torch::kFloat32, rank, tag));
    out.push_back(torch::zeros(count + tag));
  }
  for (int tag = 0; tag < 4; ++tag) works.push_back(world().send_async(in[tag], next, tag));
  auto sum = values(1000, torch::kFloat32, rank);
  auto reduced = world().all_reduce_async(sum);
  for (const int tag : {3, 1, 0, 2}) works.push_back(world().recv_async(out[tag], previous, tag));
  reduced.wait();
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  for (int tag = 0; tag < 4; ++tag) EXPECT_SAME(out[tag], values(count + tag, torch::kFloat32, previous, tag));
  EXPECT_SAME(sum, expected_sum(1000, torch::kFloat32));
}

TEST(Communicator, AsynchronousWorkProgressesWithoutAWait) {
  auto a = values(200'000, torch::kFloat32, world().rank());
  auto out = torch::zeros(1000);
  const int size = world().size(), rank = world().rank();
  auto received = world().recv_async(out, (rank + size - 1) % size, 1);
  auto sent = world().send_async(values(1000, torch::kFloat32, rank), (rank + 1) % size, 1);
  auto reduced = world().all_reduce_async(a);
  while (!reduced.done() || !received.done() || !sent.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_SAME(a, expected_sum(200'000, torch::kFloat32));
}

TEST(Communicator, SplitByParityAndTwoCommunicatorsAtOnce) {
  const int rank = world().rank(), size = world().size();
  auto half = world().split(rank % 2, -rank);  // reversed order
  std::vector<int> members;
  for (int r = size - 1; r >= 0; --r)
    if (r % 2 == rank % 2) members.push_back(r);
  ASSERT_EQ(half->size(), static_cast<int>(members.size()));
  EXPECT_EQ(members[half->rank()], rank);
  for (const int64_t count : {4, 100'000}) {
    auto mine = torch::full({count}, rank + 1.0f), everybody = torch::full({count}, rank + 1.0f);
    auto one = half->all_reduce_async(mine);
    auto two = world().all_reduce_async(everybody);
    two.wait();
    one.wait();
    float expected = 0;
    for (const int r : members) expected += static_cast<float>(r + 1);
    EXPECT_EQ(mine[0].item<float>(), expected);
    EXPECT_EQ(everybody[count - 1].item<float>(), size * (size + 1) / 2.0f);
  }
  // Memory registered with the world is registered for its parts.
  auto registered = world().allocate({100'000}, torch::kFloat32);
  registered.fill_(rank + 1.0f);
  half->all_reduce(registered);
  float expected = 0;
  for (const int r : members) expected += static_cast<float>(r + 1);
  EXPECT_EQ(registered[99'999].item<float>(), expected);
  auto quarter = half->split(half->rank() == 0 ? 0 : -1, 0);
  EXPECT_EQ(quarter != nullptr, half->rank() == 0);
}

TEST(Communicator, RefusesWhatItCannotMove) {
  const auto expect_usage = [](auto&& call) {
    try {
      call();
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code, Exit::usage) << error.what();
    }
  };
  auto matrix = torch::zeros({4, 6});
  expect_usage([&] { world().all_reduce(matrix.t()); });
  expect_usage([&] { world().all_reduce(torch::Tensor()); });
  expect_usage([&] { world().all_reduce(torch::zeros(3, torch::kComplexFloat)); });
  expect_usage([&] { world().all_reduce(torch::zeros(3), torch::zeros(4)); });
  expect_usage([&] { world().all_reduce(torch::zeros(3), torch::zeros(3, torch::kFloat64)); });
  expect_usage([&] { world().all_gather(torch::zeros(world().size() * 2 + 1), torch::zeros(2)); });
  expect_usage([&] { world().broadcast(matrix, world().size()); });
  auto flat = torch::zeros(10);
  expect_usage([&] { world().all_reduce(flat.slice(0, 0, 8), flat.slice(0, 1, 9)); });
  world().barrier();  // and nothing is out of step
}

TEST(Communicator, CountsBytes) {
  const int64_t size = world().size(), n = 1 << 16;
  const char* forced = std::getenv("MANYRANKS_FORCE_WIRE");
  const int64_t per_host = forced && std::atoi(forced) > 0 ? std::min<int64_t>(size, std::atoi(forced)) : size, left = size % per_host;
  // Hosts of different sizes: the first rank of each sends for the others. On a host of g ranks, g - 1 parts are read of each and g - 1
  // results given to the first, which has all of them in the end and gives them to g - 1; the hosts exchange as if they were ranks.
  const int64_t all = n * size * 4, hosts = size / per_host + (left ? 1 : 0);
  const auto inside = [&](int64_t g) { return (g - 1) * all + (g - 1) * all / g + (g - 1) * all; };
  const int64_t uneven_total = size / per_host * inside(per_host) + inside(std::max<int64_t>(1, left)) + 2 * (hosts - 1) * all;
  const auto expect_all_reduce = [&] {
    auto total = torch::tensor({world().traffic().bytes_sent}, torch::kInt64);
    if (!left) {
      EXPECT_EQ(total.item<int64_t>(), 2 * (size - 1) * n * 4);
    }
    world().all_reduce(total);
    EXPECT_EQ(total.item<int64_t>(), left ? uneven_total : size * 2 * (size - 1) * n * 4);
  };
  auto tensor = torch::zeros(n * size);
  world().barrier();
  world().reset_traffic();
  world().all_reduce(tensor);
  expect_all_reduce();
  world().reset_traffic();
  auto registered = world().allocate({n * size}, torch::kFloat32);
  world().reset_traffic();
  world().all_reduce(registered);
  expect_all_reduce();
  world().reset_traffic();
  world().all_gather(tensor, torch::zeros(n));
  EXPECT_EQ(world().traffic().bytes_sent, (size - 1) * n * 4);
  EXPECT_EQ(world().traffic().calls_by_operation.at("all_gather"), 1);
  // A message counts the same over shared memory and over a wire; one to myself does not.
  world().reset_traffic();
  auto sent = world().send_async(torch::zeros(n), (world().rank() + 1) % size);
  world().recv(torch::zeros(n), (world().rank() + size - 1) % size);
  sent.wait();
  EXPECT_EQ(world().traffic().bytes_sent, size > 1 ? n * 4 : 0);
}

}  // namespace
}  // namespace manyranks
