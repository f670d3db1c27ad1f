// The shared-memory layer with ranks as threads: what ThreadSanitizer and AddressSanitizer see.
#include <gtest/gtest.h>

#include "comm/host_group.hpp"
#include "comm/lane.hpp"
#include "comm/tests/thread_ranks.hpp"
#include "launch/errors.hpp"

namespace manyranks {
namespace {

// One HostGroup per thread over one segment.
void run_group(int ranks, double timeout_s, const std::function<void(HostGroup&, HostPeers&, const AllGather&)>& body) {
  test::Table table(ranks);
  test::run_ranks(ranks, [&](int rank) {
    std::vector<int> everybody(ranks);
    for (int r = 0; r < ranks; ++r) everybody[r] = r;
    auto peers = std::make_shared<HostPeers>(rank, everybody, table.of(rank));
    HostGroup group(peers, everybody, rank, "world", timeout_s, table.of(rank));
    body(group, *peers, table.of(rank));
    table.all_gather(rank, "");  // the segment lives until all are done
  });
}

void run_group(int ranks, double timeout_s, const std::function<void(HostGroup&)>& body) {
  run_group(ranks, timeout_s, [&](HostGroup& group, HostPeers&, const AllGather&) { body(group); });
}

class Threads : public testing::TestWithParam<int> {};

TEST_P(Threads, ManyCallsOfAllKindsInARow) {
  run_group(GetParam(), 60, [](HostGroup& group) {
    const int p = group.size(), me = group.rank();
    for (const size_t count : {size_t{1}, size_t{100}, size_t{5000}, size_t{200'000}}) {
      for (int round = 0; round < 3; ++round) {
        const auto value = [&](int rank, size_t i) { return static_cast<int32_t>(i % 1000 + rank * 1000 + round); };
        std::vector<int32_t> mine(count), data(count), all(count * p), sum(count), one(count);
        for (size_t i = 0; i < count; ++i) {
          mine[i] = value(me, i);
          for (int r = 0; r < p; ++r) sum[i] += value(r, i);
        }
        group.all_reduce(data.data(), mine.data(), count, Dtype::int32, ReduceOp::sum);
        ASSERT_EQ(data, sum);
        group.reduce(one.data(), mine.data(), count, Dtype::int32, ReduceOp::sum, p - 1);
        ASSERT_TRUE(me != p - 1 || one == sum);
        group.exchange(Operation::all_gather, all.data(), mine.data(), count, Dtype::int32, 0);
        for (int r = 0; r < p; ++r)
          for (size_t i = 0; i < count; ++i) ASSERT_EQ(all[r * count + i], value(r, i));
        group.all_reduce(mine.data(), mine.data(), count, Dtype::int32, ReduceOp::sum);
        ASSERT_EQ(mine, sum);
        group.reduce_scatter(one.data(), all.data(), count, Dtype::int32, ReduceOp::sum);  // all ranks have the same `all`
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(one[i], value(me, i) * p);
        for (size_t i = 0; i < count; ++i) mine[i] = value(me, i);
        group.exchange(Operation::broadcast, mine.data(), mine.data(), count, Dtype::int32, p - 1);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(mine[i], value(p - 1, i));
        std::vector<int32_t> parts(count * p);
        for (int r = 0; r < p; ++r)
          for (size_t i = 0; i < count; ++i) parts[r * count + i] = value(me * p + r, i);
        group.exchange(Operation::all_to_all, all.data(), parts.data(), count, Dtype::int32, 0);
        for (int r = 0; r < p; ++r)
          for (size_t i = 0; i < count; ++i) ASSERT_EQ(all[r * count + i], value(r * p + me, i));
        group.meet(Call{Operation::barrier});
      }
    }
  });
}

TEST_P(Threads, MessagesOfAllSizesBothWays) {
  run_group(GetParam(), 60, [](HostGroup& group) {
    const int p = group.size(), me = group.rank();
    Mailbox& mail = group.mailbox();
    // The last is larger than the ring of a pair, which has 4 MiB at 2 ranks.
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{300'000}, size_t{1'200'000}}) {
      const auto value = [](int from, int to, int tag, size_t i) { return static_cast<int32_t>(i * 13 + from * 1'000'003 + to * 10'007 + tag); };
      using Letters = std::vector<std::vector<int32_t>>;
      Letters in[3], out[3];
      for (const int tag : {1, 2}) {
        in[tag] = out[tag] = Letters(p, std::vector<int32_t>(count));
        for (int peer = 0; peer < p; ++peer)
          for (size_t i = 0; i < count; ++i) in[tag][peer][i] = value(me, peer, tag, i);
      }
      std::vector<std::shared_ptr<Message>> messages;
      for (int peer = 0; peer < p; ++peer) {
        messages.push_back(mail.send(peer, 2, in[2][peer].data(), count, Dtype::int32));
        messages.push_back(mail.send(peer, 1, in[1][peer].data(), count, Dtype::int32));
      }
      for (int peer = 0; peer < p; ++peer)
        for (const int tag : {1, 2}) messages.push_back(mail.recv(peer, tag, out[tag][peer].data(), count, Dtype::int32));
      for (auto& message : messages) mail.wait(*message);
      for (const int tag : {1, 2})
        for (int peer = 0; peer < p; ++peer)
          for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[tag][peer][i], value(peer, me, tag, i)) << "element " << i << " of " << count << " from " << peer;
    }
  });
}

// Memory that peers read and write themselves. That no slot was used shows that nothing was staged.
TEST_P(Threads, ZeroCopy) {
  run_group(GetParam(), 60, [](HostGroup& group, HostPeers& peers, const AllGather& all_gather) {
    const int p = group.size(), me = group.rank();
    const size_t share = 5000, count = share * p, bytes = 2 * count * sizeof(int32_t);
    const auto segment = share_segment(bytes * p, "a test", me == 0, 0, all_gather);
    const auto id = static_cast<uint32_t>(std::stoul(all_gather(me == 0 ? std::to_string(peers.next_allocation_id()) : "")[0]));
    const auto allocation = peers.add_allocation(segment, bytes, group.members(), id);
    auto* in = reinterpret_cast<int32_t*>(allocation->parts[me]);
    int32_t* out = in + count;
    for (int round = 0; round < 5; ++round) {
      const auto value = [&](int rank, size_t i) { return static_cast<int32_t>(i * 7 + rank * 100'003 + round); };
      const auto sum = [&](size_t i) {
        int32_t total = 0;
        for (int r = 0; r < p; ++r) total += value(r, i);
        return total;
      };
      const auto fill = [&] {
        group.meet(Call{Operation::barrier});
        for (size_t i = 0; i < count; ++i) in[i] = value(me, i), out[i] = -1;
      };
      fill();
      group.all_reduce(out, in, count, Dtype::int32, ReduceOp::sum);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], sum(i));
      group.all_reduce(in, in, count, Dtype::int32, ReduceOp::sum);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(in[i], sum(i));
      fill();
      group.reduce_scatter(out, in, share, Dtype::int32, ReduceOp::sum);
      for (size_t i = 0; i < share; ++i) ASSERT_EQ(out[i], sum(me * share + i));
      group.exchange(Operation::all_to_all, out, in, share, Dtype::int32, 0);
      for (int r = 0; r < p; ++r)
        for (size_t i = 0; i < share; ++i) ASSERT_EQ(out[r * share + i], value(r, me * share + i));
      group.exchange(Operation::all_gather, out, in, share, Dtype::int32, 0);
      for (int r = 0; r < p; ++r)
        for (size_t i = 0; i < share; ++i) ASSERT_EQ(out[r * share + i], value(r, i));
      group.exchange(Operation::broadcast, in, in, count, Dtype::int32, p - 1);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(in[i], value(p - 1, i));
    }
    group.meet(Call{Operation::barrier});
    EXPECT_LT(group.shared_bytes(), size_t{64 << 10} * p);
    group.meet(Call{Operation::barrier});
  });
}

// A pipeline on a mesh has six communicators and more, most of which never send a message.
TEST(HostGroup, TakesMemoryAsItIsUsed) {
  run_group(2, 60, [](HostGroup& group) {
    const auto used = [&] {
      group.meet(Call{Operation::barrier});
      const size_t bytes = group.shared_bytes();
      group.meet(Call{Operation::barrier});
      return bytes;
    };
    std::vector<float> data(1'200'000, 1.0f), more(data.size());
    group.all_reduce(data.data(), data.data(), HostGroup::small_bytes / sizeof(float), Dtype::float32, ReduceOp::sum);
    const size_t at_first = used();
    EXPECT_LE(at_first, 48 << 10);
    const int other = 1 - group.rank();
    const auto swap = [&](size_t count) {
      const auto sent = group.mailbox().send(other, 0, data.data(), count, Dtype::float32), received = group.mailbox().recv(other, 0, more.data(), count, Dtype::float32);
      group.mailbox().wait(*sent);
      group.mailbox().wait(*received);
    };
    swap(100);
    EXPECT_EQ(used(), at_first + 2 * (64 << 10)) << "64 KiB of each ring that is used";
    swap(data.size());
    EXPECT_EQ(used(), at_first + 2 * (4 << 20)) << "4.8 MB take all of it";
    group.all_reduce(data.data(), data.data(), data.size(), Dtype::float32, ReduceOp::sum);
    EXPECT_EQ(used(), at_first + 2 * (4 << 20) + 4 * (512 << 10)) << "two slots of each rank";
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Threads, testing::Values(1, 2, 3, 4, 5));

Exit code_of(const std::function<void()>& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (text) *text = error.what();
    return error.code;
  }
  return Exit::good;
}

TEST(HostGroup, NamesBothCallsWhenRanksDisagree) {
  const std::vector<std::pair<std::function<void(HostGroup&)>, std::string>> wrong = {
      {[](HostGroup& g) { float x[4] = {}; g.exchange(Operation::broadcast, x, x, 4, Dtype::float32, 0); }, "broadcast(float32, 4, root 0)"},
      {[](HostGroup& g) { float x[5] = {}; g.all_reduce(x, x, 5, Dtype::float32, ReduceOp::sum); }, "all_reduce(float32, 5, sum)"},
      {[](HostGroup& g) { int x[4] = {}; g.all_reduce(x, x, 4, Dtype::int32, ReduceOp::sum); }, "all_reduce(int32, 4, sum)"},
      {[](HostGroup& g) { float x[4] = {}; g.all_reduce(x, x, 4, Dtype::float32, ReduceOp::max); }, "all_reduce(float32, 4, max)"},
      {[](HostGroup& g) { std::vector<float> x(100'000); g.all_reduce(x.data(), x.data(), x.size(), Dtype::float32, ReduceOp::sum); }, "all_reduce(float32, 100000, sum)"},
  };
  for (const auto& [call, name] : wrong)
    run_group(3, 60, [&, &call = call, &name = name](HostGroup& group) {
      std::string text;
      const Exit code = code_of([&] {
        float x[4] = {};
        if (group.rank() == 1) call(group);
        else group.all_reduce(x, x, 4, Dtype::float32, ReduceOp::sum);
      }, &text);
      EXPECT_EQ(code, Exit::disagree);
      EXPECT_NE(text.find(name), std::string::npos) << text;
      EXPECT_NE(text.find("all_reduce(float32, 4, sum)"), std::string::npos) << text;
    });
}

TEST(HostGroup, NamesWhoDoesNotCome) {
  run_group(3, 0.2, [](HostGroup& group) {
    if (group.rank() == 2) return;
    std::string text;
    EXPECT_EQ(code_of([&] { group.meet(Call{Operation::barrier}); }, &text), Exit::lost_peer);
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
    EXPECT_EQ(text.find("rank 1"), std::string::npos) << text;
  });
}

TEST(HostGroup, AMessageOfTheWrongSizeIsRefused) {
  run_group(2, 5, [](HostGroup& group) {
    float data[4] = {};
    if (group.rank() == 0) return group.mailbox().wait(*group.mailbox().send(1, 0, data, 4, Dtype::float32));
    EXPECT_EQ(code_of([&] { group.mailbox().wait(*group.mailbox().recv(0, 0, data, 3, Dtype::float32)); }), Exit::disagree);
  });
}

TEST(Segment, TooMuchMemoryIsAnErrorAndNotACrash) {
  EXPECT_EQ(code_of([] { Segment::create(size_t{1} << 50, "a test"); }), Exit::unavailable);
  EXPECT_EQ(code_of([] { Segment::open("1 2 3"); }), Exit::unavailable);
}

TEST(Lane, RunsInOrderAndStaysBroken) {
  Lane lane;
  std::vector<int> order;
  std::vector<std::shared_ptr<Lane::Job>> jobs;
  for (int i = 0; i < 100; ++i) jobs.push_back(lane.submit([&order, i] { order.push_back(i); }));
  lane.run([&] { order.push_back(100); });
  for (int i = 0; i <= 100; ++i) ASSERT_EQ(order[i], i);
  auto bad = lane.submit([] { throw usage_error("test", "broken"); });
  EXPECT_EQ(code_of([&] { bad->wait(); }), Exit::usage);
  EXPECT_EQ(code_of([&] { lane.run([] {}); }), Exit::usage);
}

}  // namespace
}  // namespace manyranks
