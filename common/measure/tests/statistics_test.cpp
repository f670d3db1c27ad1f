#include "measure/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

namespace manyranks {
namespace {

TEST(Statistics, MedianOfOddAndEven) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(median({7}), 7);
}

TEST(Statistics, QuantilesAsNumpy) {
  const std::vector<double> samples{10, 20, 30, 40, 50};
  EXPECT_DOUBLE_EQ(quantile(samples, 0), 10);
  EXPECT_DOUBLE_EQ(quantile(samples, 1), 50);
  EXPECT_DOUBLE_EQ(quantile(samples, 0.95), 48);  // 40 + 0.8 * 10
  EXPECT_DOUBLE_EQ(quantile(samples, 0.1), 14);
  EXPECT_DOUBLE_EQ(spread(samples), 20);
}

TEST(Statistics, OneOutlierDoesNotMoveTheMedian) { EXPECT_DOUBLE_EQ(median({1, 1, 1, 1, 1000}), 1); }

TEST(Statistics, Refuses) {
  EXPECT_THROW(median({}), std::invalid_argument);
  EXPECT_THROW(spread({}), std::invalid_argument);
  EXPECT_THROW(median_interval({}), std::invalid_argument);
  EXPECT_THROW(quantile({1}, 1.5), std::invalid_argument);
  EXPECT_THROW(quantile({1}, std::nan("")), std::invalid_argument);
}

std::vector<double> one_to(int n) {
  std::vector<double> samples;
  for (int i = n; i >= 1; --i) samples.push_back(i);
  return samples;
}

TEST(Statistics, MedianIntervalByTables) {  // ranks from the tables of the sign test
  using Interval = std::pair<double, double>;
  EXPECT_EQ(median_interval(one_to(1)), Interval(1, 1));
  EXPECT_EQ(median_interval(one_to(5)), Interval(1, 5));
  EXPECT_EQ(median_interval(one_to(6)), Interval(1, 6));
  EXPECT_EQ(median_interval(one_to(10)), Interval(2, 9));
  EXPECT_EQ(median_interval(one_to(20)), Interval(6, 15));
  EXPECT_EQ(median_interval(one_to(100)), Interval(40, 61));
}

TEST(Statistics, MedianIntervalCoversAsPromised) {
  std::mt19937 random(1);
  std::exponential_distribution<double> skewed(1.0);
  int covered = 0;
  const int repetitions = 2000;
  for (int i = 0; i < repetitions; ++i) {
    std::vector<double> samples(25);
    for (auto& sample : samples) sample = skewed(random);
    const auto [low, high] = median_interval(samples);
    covered += low <= std::log(2.0) && std::log(2.0) <= high;
  }
  EXPECT_GE(covered, repetitions * 94 / 100);
  EXPECT_LE(covered, repetitions * 98 / 100);  // an interval that always covers says nothing
}

}  // namespace
}  // namespace manyranks
