#include <gtest/gtest.h>

#include <numbers>

#include "launch/errors.hpp"
#include "train/schedule.hpp"

namespace manyranks {
namespace {

TEST(Schedule, Constant) {
  const Schedule rate = constant_rate(0.3);
  EXPECT_EQ(rate(0), 0.3);
  EXPECT_EQ(rate(1'000'000), 0.3);
}

TEST(Schedule, WarmupThenCosine) {
  const Schedule rate = warmup_cosine(1.0, 10, 110, 0.1);
  EXPECT_DOUBLE_EQ(rate(0), 0.1);  // never 0: the first step must do something
  EXPECT_DOUBLE_EQ(rate(4), 0.5);
  EXPECT_DOUBLE_EQ(rate(9), 1.0);
  EXPECT_DOUBLE_EQ(rate(10), 1.0);
  EXPECT_NEAR(rate(60), 0.55, 1e-12);  // half way down
  EXPECT_NEAR(rate(35), 0.1 + 0.9 * 0.5 * (1 + std::numbers::sqrt2 / 2), 1e-12);
  EXPECT_NEAR(rate(110), 0.1, 1e-12);
  EXPECT_NEAR(rate(500), 0.1, 1e-12);
  EXPECT_THROW(warmup_cosine(1.0, 10, 10), Error);
}

TEST(Schedule, StepDecay) {
  const Schedule rate = step_decay(0.1, {30, 60});
  EXPECT_DOUBLE_EQ(rate(29), 0.1);
  EXPECT_DOUBLE_EQ(rate(30), 0.01);
  EXPECT_NEAR(rate(60), 0.001, 1e-15);
  const Schedule warm = with_warmup(step_decay(0.1, {30}), 4);
  EXPECT_DOUBLE_EQ(warm(0), 0.025);
  EXPECT_DOUBLE_EQ(warm(4), 0.1);
  EXPECT_DOUBLE_EQ(warm(30), 0.01);
}

TEST(Schedule, LinearScaling) {
  EXPECT_DOUBLE_EQ(linear_scaling(0.1, 8192), 3.2);
  EXPECT_DOUBLE_EQ(linear_scaling(0.1, 128), 0.05);
}

}  // namespace
}  // namespace manyranks
