// The shared-memory layer with ranks as threads: what ThreadSanitizer and AddressSanitizer see.
#include <gtest/gtest.h>

#include "comm/host_group.hpp"
#include "comm/lane.hpp"
#include "comm/tests/thread_ranks.hpp"
#include "launch/errors.hpp"

namespace manyranks {
namespace {

// One HostGroup per thread over one segment.
void run_group(int ranks, double timeout_s, const std::function<void(HostGroup&)>& body) {
  test::Table table(ranks);
  test::run_ranks(ranks, [&](int rank) {
    std::vector<int> everybody(ranks);
    for (int r = 0; r < ranks; ++r) everybody[r] = r;
    auto peers = std::make_shared<HostPeers>(rank, everybody, table.of(rank));
    HostGroup group(peers, everybody, rank, "world", timeout_s, table.of(rank));
    body(group);
    table.all_gather(rank, "");  // the segment lives until all are done
  });
}

class Threads : public testing::TestWithParam<int> {};

TEST_P(Threads, ManyCallsOfAllKindsInARow) {
  run_group(GetParam(), 60, [](HostGroup& group) {
    const int p = group.size(), me = group.rank();
    for (const size_t count : {size_t{1}, size_t{100}, size_t{5000}, size_t{200'000}}) {
      for (int round = 0; round < 3; ++round) {
        std::vector<int32_t> data(count, me + 1), all(count * p), one(count);
        group.all_reduce(data.data(), data.data(), count, Dtype::int32, ReduceOp::sum);
        ASSERT_EQ(data.front(), p * (p + 1) / 2);
        ASSERT_EQ(data.back(), p * (p + 1) / 2);
        std::vector<int32_t> mine(count, me);
        group.exchange(Operation::all_gather, all.data(), mine.data(), count, Dtype::int32, 0);
        for (int r = 0; r < p; ++r) ASSERT_EQ(all[r * count + count / 2], r);
        group.reduce_scatter(one.data(), all.data(), count, Dtype::int32, ReduceOp::sum);
        ASSERT_EQ(one.back(), me * p);
        group.exchange(Operation::broadcast, mine.data(), mine.data(), count, Dtype::int32, p - 1);
        ASSERT_EQ(mine.back(), p - 1);
        group.exchange(Operation::all_to_all, all.data(), std::vector<int32_t>(count * p, me).data(), count, Dtype::int32, 0);
        for (int r = 0; r < p; ++r) ASSERT_EQ(all[r * count], r);
        group.meet(Call{Operation::barrier});
      }
    }
  });
}

TEST_P(Threads, MessagesOfAllSizesBothWays) {
  run_group(GetParam(), 60, [](HostGroup& group) {
    const int p = group.size(), me = group.rank();
    Mailbox& mail = group.mailbox();
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{300'000}}) {
      std::vector<std::vector<int32_t>> in(p, std::vector<int32_t>(count, me)), out(p, std::vector<int32_t>(count));
      std::vector<std::shared_ptr<Message>> messages;
      for (int peer = 0; peer < p; ++peer) {
        messages.push_back(mail.send(peer, 2, in[peer].data(), count, Dtype::int32));
        messages.push_back(mail.send(peer, 1, in[peer].data(), count, Dtype::int32));
      }
      for (int peer = 0; peer < p; ++peer)
        for (const int tag : {1, 2}) messages.push_back(mail.recv(peer, tag, out[peer].data(), count, Dtype::int32));
      for (auto& message : messages) mail.wait(*message);
      for (int peer = 0; count && peer < p; ++peer) ASSERT_EQ(out[peer].back(), peer);
    }
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
