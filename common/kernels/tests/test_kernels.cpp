// The vectorised loops against the functor called one element at a time, bit by bit, whole and cut anywhere.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/gelu.hpp"
#include "kernels/guarded.hpp"
#include "kernels/kernels.hpp"

namespace manyranks::kernels {
namespace {

std::vector<float> random_values(int64_t count, unsigned seed, float low = -2.0F, float high = 2.0F) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> draw(low, high);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = draw(engine);
  return values;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0) << what << " differs at " << i << ": " << a[i] << " and " << b[i];
  }
}

struct State {
  std::vector<float> parameter, gradient, first, second;
  explicit State(int64_t count)
      : parameter(random_values(count, 1)), gradient(random_values(count, 2)), first(random_values(count, 3)),
        second(random_values(count, 4, 0.0F, 1.0F)) {}
};

constexpr int64_t count = 1027;  // a tail behind every vector width
const Sgd sgd_step{0.05F, 0.9F, 1e-4F, 0.25F};

Adam adam_step(bool decoupled) {
  AdamSettings settings;
  settings.weight_decay = 0.01;
  settings.decoupled = decoupled;
  settings.gradient_scale = 0.5;
  return adam_at_step(settings, 3);
}

TEST(Kernels, SgdEqualsItsFunctor) {
  State fused(count), plain(count);
  cpu::sgd(sgd_step, fused.parameter.data(), fused.gradient.data(), fused.first.data(), count);
  for (size_t i = 0; i < count; ++i) sgd_step(plain.parameter[i], plain.gradient[i], plain.first[i]);
  expect_same_bits(fused.parameter, plain.parameter, "parameter");
  expect_same_bits(fused.first, plain.first, "velocity");
}

TEST(Kernels, GeluEqualsItsFunctorAndItsFormula) {
  const auto x = random_values(20011, 6, -12.0F, 12.0F), gradient = random_values(20011, 7);
  const auto n = static_cast<int64_t>(x.size());
  std::vector<float> out(x.size()), back(x.size()), plain(x.size()), plain_back(x.size());
  cpu::gelu(out.data(), x.data(), n);
  cpu::gelu_backward(back.data(), x.data(), gradient.data(), n);
  for (size_t i = 0; i < x.size(); ++i) {
    plain[i] = Gelu()(x[i]), plain_back[i] = gradient[i] * Gelu().slope(x[i]);
    const double t = x[i], gate = 1 / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (t + 0.044715 * t * t * t)));
    ASSERT_NEAR(out[i], t * gate, 1e-6) << x[i];
    ASSERT_NEAR(back[i], gradient[i] * (gate + t * gate * (1 - gate) * 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * t * t)), 5e-6) << x[i];
  }
  expect_same_bits(out, plain, "gelu");
  expect_same_bits(back, plain_back, "its gradient");
  EXPECT_EQ(Gelu()(0.0F), 0.0F);
  EXPECT_EQ(Gelu()(100.0F), 100.0F);
  EXPECT_NEAR(Gelu()(-100.0F), 0.0F, 1e-30);
  EXPECT_TRUE(std::isnan(Gelu()(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Kernels, AdamEqualsItsFunctor) {
  for (const bool decoupled : {false, true}) {
    const Adam step = adam_step(decoupled);
    State fused(count), plain(count);
    cpu::adam(step, fused.parameter.data(), fused.gradient.data(), fused.first.data(), fused.second.data(), count);
    for (size_t i = 0; i < count; ++i) step(plain.parameter[i], plain.gradient[i], plain.first[i], plain.second[i]);
    expect_same_bits(fused.parameter, plain.parameter, "parameter");
    expect_same_bits(fused.first, plain.first, "mean");
    expect_same_bits(fused.second, plain.second, "square");
  }
}

// Every cut from 0 to 70 moves the boundary through all alignments of a 64-byte vector.
TEST(Kernels, CutsDoNotChangeBits) {
  const Adam step = adam_step(true);
  State whole(count);
  cpu::adam(step, whole.parameter.data(), whole.gradient.data(), whole.first.data(), whole.second.data(), count);
  State sgd_whole(count);
  cpu::sgd(sgd_step, sgd_whole.parameter.data(), sgd_whole.gradient.data(), sgd_whole.first.data(), count);
  for (int64_t cut = 0; cut <= 70; ++cut) {
    State parts(count), sgd_parts(count);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, cut}, {cut, count}}) {
      cpu::adam(step, parts.parameter.data() + begin, parts.gradient.data() + begin, parts.first.data() + begin,
                parts.second.data() + begin, end - begin);
      cpu::sgd(sgd_step, sgd_parts.parameter.data() + begin, sgd_parts.gradient.data() + begin, sgd_parts.first.data() + begin,
               end - begin);
    }
    expect_same_bits(parts.parameter, whole.parameter, "adam cut at " + std::to_string(cut));
    expect_same_bits(sgd_parts.parameter, sgd_whole.parameter, "sgd cut at " + std::to_string(cut));
  }
}

TEST(Kernels, ScaleFindsWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = random_values(count, 5);
  const std::vector<float> before = values;
  EXPECT_TRUE(cpu::scale(Scale{0.125F}, values.data(), count));
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], before[i] * 0.125F);
  EXPECT_TRUE(cpu::scale(Scale{2.0F}, values.data(), 0));
  for (const size_t place : {size_t{0}, size_t{513}, size_t{count - 1}}) {
    for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> spoiled = before;
      spoiled[place] = bad;
      EXPECT_FALSE(cpu::scale(Scale{0.5F}, spoiled.data(), count)) << bad << " at " << place;
    }
  }
  std::vector<float> large(count, std::numeric_limits<float>::max());
  EXPECT_FALSE(cpu::scale(Scale{2.0F}, large.data(), count)) << "overflow by the scaling itself";
}

TEST(Kernels, SumOfSquaresIsExactOnIntegersAndCloseOtherwise) {
  std::vector<float> integers(count);
  double expected = 0;
  for (size_t i = 0; i < count; ++i) {
    integers[i] = static_cast<float>(static_cast<int>(i % 17) - 8);
    expected += static_cast<double>(integers[i]) * integers[i];
  }
  EXPECT_EQ(cpu::sum_of_squares(integers.data(), count), expected);
  EXPECT_EQ(cpu::sum_of_squares(integers.data(), 0), 0.0);

  const std::vector<float> values = random_values(count, 6);
  long double precise = 0;
  for (const float value : values) precise += static_cast<long double>(value) * value;
  EXPECT_NEAR(cpu::sum_of_squares(values.data(), count), static_cast<double>(precise), 1e-10);
}

// Two passes against the operators one by one: unscale, norm, clip, step.
TEST(Kernels, GuardedStepUnscalesThenClips) {
  const double scale = 1024.0, max_norm = 0.5;
  State fused(count), plain(count);
  for (float& gradient : fused.gradient) gradient *= static_cast<float>(scale);
  const double norm = cpu::sum_of_squares(fused.gradient.data(), count);
  cpu::guarded_sgd({sgd_step, {.inverse_scale = 1 / scale, .max_norm = max_norm}}, &norm, fused.parameter.data(), fused.gradient.data(), fused.first.data(), count);
  double real_norm = 0;
  for (const float gradient : plain.gradient) real_norm += static_cast<double>(gradient) * gradient;
  Sgd clipped = sgd_step;
  clipped.gradient_scale = static_cast<float>(max_norm / std::sqrt(real_norm));
  ASSERT_LT(clipped.gradient_scale, 1.0F) << "nothing to clip: the test would show nothing";
  for (size_t i = 0; i < count; ++i) {
    clipped(plain.parameter[i], plain.gradient[i], plain.first[i]);
    ASSERT_NEAR(fused.parameter[i], plain.parameter[i], 1e-6) << i;
  }
  // Below the limit, and by a power of two: the bits of a step on the unscaled gradient.
  const Adam adam = adam_step(true);
  State unscaled(count), by_hand(count);
  for (float& gradient : unscaled.gradient) gradient *= static_cast<float>(scale);
  const double square = cpu::sum_of_squares(unscaled.gradient.data(), count);
  cpu::guarded_adam({adam, {.inverse_scale = 1 / scale, .max_norm = 1e9}}, &square, unscaled.parameter.data(), unscaled.gradient.data(), unscaled.first.data(),
                    unscaled.second.data(), count);
  Adam one = adam;
  one.gradient_scale = 1.0F;
  for (size_t i = 0; i < count; ++i) one(by_hand.parameter[i], by_hand.gradient[i], by_hand.first[i], by_hand.second[i]);
  expect_same_bits(unscaled.parameter, by_hand.parameter, "parameter");
  expect_same_bits(unscaled.second, by_hand.second, "square");
}

TEST(Kernels, GuardedStepLeavesEverythingAloneIfAGradientIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t place : {size_t{0}, size_t{513}, size_t{count - 1}}) {
      State state(count), before(count);
      state.gradient[place] = bad;
      const double norm = cpu::sum_of_squares(state.gradient.data(), count);
      EXPECT_FALSE(Guard::accepts(norm)) << bad << " at " << place;
      cpu::guarded_sgd({sgd_step, {}}, &norm, state.parameter.data(), state.gradient.data(), state.first.data(), count);
      cpu::guarded_adam({adam_step(false), {}}, &norm, state.parameter.data(), state.gradient.data(), state.first.data(), state.second.data(), count);
      expect_same_bits(state.parameter, before.parameter, "parameter");
      expect_same_bits(state.first, before.first, "state");
      expect_same_bits(state.second, before.second, "state");
    }
  }
  // The largest floats are finite, and so is the sum of their squares.
  const std::vector<float> large(count, std::numeric_limits<float>::max());
  EXPECT_TRUE(Guard::accepts(cpu::sum_of_squares(large.data(), count)));
}

// torch.optim.Adam's definition, in double, over a few steps.
TEST(Kernels, AdamFollowsItsDefinition) {
  AdamSettings settings;
  settings.learning_rate = 0.1;
  settings.weight_decay = 0.02;
  float parameter = 1.0F, mean = 0.0F, square = 0.0F;
  double p = 1.0, m = 0.0, v = 0.0;
  for (long t = 1; t <= 5; ++t) {
    const float gradient = 0.3F * static_cast<float>(t) - 1.0F;
    adam_at_step(settings, t)(parameter, gradient, mean, square);
    const double g = static_cast<double>(gradient) + settings.weight_decay * p;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    p -= 0.1 * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
  }
  EXPECT_NEAR(parameter, p, 1e-6);
}

}  // namespace
}  // namespace manyranks::kernels
