// Times over ranks, with a peer that is made up: no time is asserted, only what is made of it.
#include "measure/timer.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/communicator.hpp"
#include "measure/statistics.hpp"

namespace manyranks {
namespace {

// Two ranks; the other one's step times are `peer`. Only what timing uses is there.
class PeerWithTimes : public Communicator {
 public:
  explicit PeerWithTimes(std::vector<double> peer) : peer_(std::move(peer)) {}
  int barriers = 0, reductions = 0;

  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name() const override { return "world"; }
  std::string backend() const override { return "mpi"; }
  std::string transport() const override { return "made up"; }
  std::string why() const override { return ""; }
  void all_reduce(torch::Tensor out, torch::Tensor in, ReduceOp op) override {
    ++reductions;
    EXPECT_EQ(op, ReduceOp::max);
    EXPECT_EQ(in.scalar_type(), torch::kFloat64);
    out.copy_(torch::maximum(in, torch::tensor(peer_, torch::kFloat64)));
  }
  void barrier() override { ++barriers; }

  using T = torch::Tensor;
  [[noreturn]] static void unused() { throw std::logic_error("timing must not call this"); }
  Work all_reduce_async(T, T, ReduceOp) override { unused(); }
  Work all_gather_async(T, T) override { unused(); }
  Work reduce_scatter_async(T, T, ReduceOp) override { unused(); }
  Work broadcast_async(T, int) override { unused(); }
  Work reduce_async(T, T, int, ReduceOp) override { unused(); }
  Work gather_async(T, T, int) override { unused(); }
  Work scatter_async(T, T, int) override { unused(); }
  Work all_to_all_async(T, T) override { unused(); }
  Work send_async(T, int, int) override { unused(); }
  Work recv_async(T, int, int) override { unused(); }
  void all_gather(T, T) override { unused(); }
  void reduce_scatter(T, T, ReduceOp) override { unused(); }
  void broadcast(T, int) override { unused(); }
  void reduce(T, T, int, ReduceOp) override { unused(); }
  void gather(T, T, int) override { unused(); }
  void scatter(T, T, int) override { unused(); }
  void all_to_all(T, T) override { unused(); }
  void send(T, int, int) override { unused(); }
  void recv(T, int, int) override { unused(); }
  T allocate(std::vector<int64_t>, torch::Dtype) override { unused(); }
  std::unique_ptr<Communicator> split(int, int) override { unused(); }
  Traffic traffic() const override { unused(); }
  void reset_traffic() override { unused(); }
  void finish() override { unused(); }
  bool claim_failure(int, const std::string&) noexcept override { return true; }
  void end_peers() noexcept override {}

 private:
  std::vector<double> peer_;
};

constexpr double hour = 3600, never_slower = -1;  // of the peer: beyond, and below, any time of ours

TEST(StepTimes, AreTheSlowestRanksPerStep) {
  PeerWithTimes world({hour, never_slower, 2 * hour});
  const auto timing = time_steps(world, 0, 3, [] {});
  ASSERT_EQ(timing.samples.size(), 3u);
  EXPECT_EQ(timing.samples[0], hour);
  EXPECT_GE(timing.samples[1], 0);
  EXPECT_LT(timing.samples[1], hour);
  EXPECT_EQ(timing.samples[2], 2 * hour);
  EXPECT_EQ(timing.median, hour);
  EXPECT_EQ(timing.p95, quantile(timing.samples, 0.95));
}

TEST(StepTimes, WarmUpRunsButDoesNotCount) {
  PeerWithTimes world({never_slower, never_slower});
  int runs = 0, barriers_at_first_timed = -1;
  const auto timing = time_steps(world, 3, 2, [&] {
    if (++runs == 4) barriers_at_first_timed = world.barriers;
  });
  EXPECT_EQ(runs, 5);
  EXPECT_EQ(timing.samples.size(), 2u);
  EXPECT_EQ(barriers_at_first_timed, 1) << "ranks must begin the timed part together";
  EXPECT_EQ(world.reductions, 1) << "one collective for all steps";
}

TEST(StepTimes, StepTimerDropsItsWarmUp) {
  PeerWithTimes world({hour});
  StepTimer timer(2);
  for (int i = 0; i < 3; ++i) timer.start(), timer.stop();
  EXPECT_EQ(timer.mine().size(), 1u);
  EXPECT_EQ(timer.over_ranks(world).median, hour);
}

TEST(StepTimes, NothingTimedIsAnError) {
  PeerWithTimes world({});
  EXPECT_THROW(time_steps(world, 1, 0, [] {}), std::invalid_argument);
}

TEST(WallTime, OnlyGrows) {
  WallTimer timer;
  const double first = timer.seconds();
  EXPECT_GE(first, 0);
  EXPECT_GE(timer.seconds(), first);
}

}  // namespace
}  // namespace manyranks
