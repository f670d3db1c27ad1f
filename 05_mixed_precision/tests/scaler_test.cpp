// What the comparison with PyTorch's scaler does not reach: wrong settings, the way down to nothing, and a restored state.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "launch/errors.hpp"
#include "train/grad_scaler.hpp"

namespace manyranks {
namespace {

TEST(Scaler, RefusesWhatCannotWork) {
  for (const float initial : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) EXPECT_THROW(GradScaler({.initial = initial}), Error) << initial;
  EXPECT_THROW(GradScaler({.growth = 1.0}), Error);
  EXPECT_THROW(GradScaler({.backoff = 1.0}), Error);
  EXPECT_THROW(GradScaler({.interval = 0}), Error);
}

// A NaN in the model overflows at every scale: the run ends and says so, before the factor that unscales is infinite.
TEST(Scaler, EndsWhereEveryStepOverflows) {
  GradScaler scaler;
  try {
    for (int step = 0; step < 300; ++step) {
      scaler.update(true);
      ASSERT_TRUE(std::isfinite(scaler.inverse())) << "step " << step << ", scale " << scaler.scale();
    }
    FAIL() << "300 skipped steps, and a scale of " << scaler.scale();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::disagree);
    EXPECT_NE(error.cause.find("fell to nothing"), std::string::npos) << error.cause;
    EXPECT_NE(error.cause.find("NaN in the model"), std::string::npos) << error.cause;
  }
  EXPECT_GT(scaler.skipped(), 100) << "it gave up early";
}

TEST(Scaler, ARestoredOneGoesOnAsTheOther) {
  const ScalerOptions options{.initial = 1024, .interval = 3};
  const std::vector<bool> overflows{true, false, false, true, false, false, false, false, true, false, false, false};
  for (size_t cut = 0; cut <= overflows.size(); ++cut) {
    GradScaler whole(options), first(options), second(options);
    for (size_t i = 0; i < overflows.size(); ++i) {
      whole.update(overflows[i]);
      if (i == cut) second.load(first.state());
      (i < cut ? first : second).update(overflows[i]);
    }
    const GradScaler& last = cut == overflows.size() ? first : second;
    EXPECT_EQ(last.scale(), whole.scale()) << "cut at " << cut;
    EXPECT_EQ(last.state().good_steps, whole.state().good_steps) << "cut at " << cut;
    EXPECT_EQ(last.skipped(), whole.skipped()) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace manyranks
