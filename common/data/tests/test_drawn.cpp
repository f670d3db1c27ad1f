// digits and shapes: a function of (seed, split, index), balanced, and no two alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <string>

#include "data/digits.hpp"
#include "data/file.hpp"
#include "data/shapes.hpp"

using namespace manyranks;

namespace {

Bytes read(const Dataset& data, std::int64_t index) {
  Bytes pixels(data.shape().values() + 1);
  pixels.back() = static_cast<std::uint8_t>(data.read(index, pixels.data()));
  return pixels;
}

template <typename Make>
void check_drawn(Make make) {
  const auto data = make(Split::train, 1);
  const Bytes third = read(data, 3);
  read(data, 7);
  EXPECT_EQ(read(data, 3), third) << "depends on what was read before";
  EXPECT_EQ(read(make(Split::train, 1), 3), third);
  EXPECT_NE(read(make(Split::train, 2), 3), third) << "does not depend on the seed";
  EXPECT_NE(read(make(Split::test, 1), 3), third) << "training and test samples are the same";

  std::array<int, 10> count{};
  std::set<std::string> seen;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const Bytes sample = read(data, i);
    ++count[sample.back()];
    seen.insert(std::string(sample.begin(), sample.end()));
    const int brightest = *std::max_element(sample.begin(), sample.end() - 1), darkest = *std::min_element(sample.begin(), sample.end() - 1);
    ASSERT_GT(brightest - darkest, 30) << "sample " << i << " shows nothing";
  }
  EXPECT_EQ(seen.size(), 2000u);
  for (int n : count) EXPECT_NEAR(n, 200, 60);
}

TEST(Drawn, Digits) { check_drawn([](Split split, std::uint64_t seed) { return Digits(split, seed); }); }
TEST(Drawn, Shapes) { check_drawn([](Split split, std::uint64_t seed) { return Shapes(split, 32, seed); }); }

// A fixed picture: if this fails, the drawing changed, and every accuracy published for `digits` must be taken again.
TEST(Drawn, DigitsHaveNotChanged) {
  const Digits data(Split::test);
  std::int64_t sum = 0;
  std::string labels;
  for (std::int64_t i = 0; i < 20; ++i) {
    const Bytes sample = read(data, i);
    labels += static_cast<char>('0' + sample.back());
    sum += std::accumulate(sample.begin(), sample.end() - 1, std::int64_t{0});
  }
  EXPECT_EQ(labels, "15134907940806013503");
  EXPECT_NEAR(static_cast<double>(sum), 547561.0, 500) << "labels " << labels;  // libm may differ by a level here and there
}

}  // namespace
