// Mixed precision learns what float32 learns: within half a point of accuracy on unseen digits and shapes, after real (short) training from
// the same weights on the same samples in the same order. Half way, as here, runs that differ in a rounding end up to a point apart: that
// much is allowed for chance, and no more. (bench_precision --max-gap 0.005 asks the same after long training, without it.)
#include <gtest/gtest.h>

#include <vector>

#include "comm/tests/rank_main.hpp"  // world
#include "workload.hpp"

namespace manyranks {
namespace {

constexpr double gap = 0.005, chance = 0.01;

double train_once(const Images& images, const std::string& data, Recipe recipe, uint64_t seed) {
  recipe.seed = seed;
  const Outcome outcome = train(test::world(), images, recipe, torch::kCPU);
  std::printf("  %s, %s, seed %d: %.2f%% of %lld unseen samples, loss %.4f, %lld skipped\n", data.c_str(), recipe.amp.dtype_name().c_str(), static_cast<int>(seed), 100 * outcome.accuracy,
              static_cast<long long>(images.test.y.numel()), mean_of_last(outcome.losses, 10), static_cast<long long>(outcome.skipped));
  return outcome.accuracy;
}

void check(const std::string& data, Recipe recipe, int64_t train_size, int64_t test_size, double at_least) {
  const Images images = load_images(data, "", 1, train_size, test_size);
  const auto mean_over = [&](const char* precision, const std::vector<uint64_t>& seeds) {
    recipe.amp = Amp(precision);
    double sum = 0;
    for (const uint64_t seed : seeds) sum += train_once(images, data, recipe, seed);
    return sum / static_cast<double>(seeds.size());
  };
  const double one = mean_over("off", {1}), two = (one + mean_over("off", {2})) / 2;
  EXPECT_GT(one, at_least) << "it learned too little to compare anything";
  EXPECT_GE(mean_over("bf16", {1, 2}), two - gap - chance) << data << " in bf16";
  EXPECT_GE(mean_over("fp16", {1}), one - gap - chance) << data << " in fp16";
}

// Few channels, and one seed for fp16: without instructions for it a CPU is ten times slower.
TEST(Accuracy, Digits) { check("digits", {.model = "convnet", .steps = 400, .batch = 32, .width = 8, .rate = 3e-3}, 12800, 6000, 0.8); }
TEST(Accuracy, Shapes) { check("shapes", {.model = "convnet", .steps = 1200, .batch = 32, .width = 4, .rate = 5e-3}, 9600, 6000, 0.6); }

}  // namespace
}  // namespace manyranks
