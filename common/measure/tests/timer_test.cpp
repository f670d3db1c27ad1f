// Times over ranks: made-up ones, so that nothing depends on how fast this machine is.
#include "measure/timer.hpp"

#include <gtest/gtest.h>

#include "comm/communicator.hpp"
#include "comm/tests/rank_main.hpp"  // test::process
#include "measure/statistics.hpp"

namespace manyranks {
namespace {

using test::world;

TEST(StepTimes, AreTheSlowestRanksPerStep) {
  // In step i the slowest rank is i modulo the ranks: 100 + i seconds; the others take i.
  StepTimer timer(0);
  const int steps = 5;
  for (int i = 0; i < steps; ++i) timer.add(i % world().size() == world().rank() ? 100 + i : i);
  const auto timing = timer.over_ranks(world());
  EXPECT_EQ(timing.samples, (std::vector<double>{100, 101, 102, 103, 104}));
  EXPECT_EQ(timing.median, 102);
  EXPECT_EQ(timing.p95, quantile(timing.samples, 0.95));
}

TEST(StepTimes, WarmUpIsDropped) {
  StepTimer timer(2);
  for (const double seconds : {1000.0, 1000.0, 1.0}) timer.add(seconds);
  timer.start();
  timer.stop();
  ASSERT_EQ(timer.mine().size(), 2u);
  EXPECT_EQ(timer.mine()[0], 1.0);
  EXPECT_GE(timer.mine()[1], 0);
}

TEST(StepTimes, OneCollectiveForAllSteps) {
  const auto before = world().traffic();
  int runs = 0;
  const auto timing = time_steps(world(), 3, 4, [&] { ++runs; });
  EXPECT_EQ(runs, 7);
  EXPECT_EQ(timing.samples.size(), 4u);
  auto before_calls = before.calls_by_operation, after_calls = world().traffic().calls_by_operation;
  EXPECT_EQ(after_calls["all_reduce"] - before_calls["all_reduce"], 1);
}

TEST(StepTimes, NothingTimedIsAnError) {
  EXPECT_THROW(time_steps(world(), 1, 0, [] {}), std::invalid_argument);
}

TEST(WallTime, OnlyGrows) {
  WallTimer timer;
  const double first = timer.seconds();
  EXPECT_GE(first, 0);
  EXPECT_GE(timer.seconds(), first);
}

}  // namespace
}  // namespace manyranks
