// Synchronised batch normalisation of half-precision activations, against LibTorch's layer on the samples of all ranks: statistics in
// float32, the output in the type that came in.
#include <gtest/gtest.h>

#include "comm/tests/rank_main.hpp"  // world
#include "measure/verify.hpp"        // expect_close
#include "models/batch_norm.hpp"
#include "parallel/sync_batch_norm.hpp"
#include "train/amp.hpp"

namespace manyranks {
namespace {

TEST(BatchNorm, StatisticsOfHalfPrecisionAreFloat32) {
  Communicator& world = test::world();
  const int64_t each = 8, channels = 6;
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const Amp amp(precision);
    torch::manual_seed(3);
    // Means that half precision cannot hold, of values that it can: bf16 has 7 bits behind the first.
    const auto all = (torch::randn({each * world.size(), channels, 9, 9}) + torch::linspace(5, 11, channels).view({1, -1, 1, 1})).to(amp.dtype());
    const auto weights = torch::randn({each * world.size(), channels, 9, 9});
    BatchNorm whole(channels), mine(channels);
    const SyncBatchNorm sync(world, *mine);
    const auto run = [&](BatchNorm& layer, const torch::Tensor& x, const torch::Tensor& weight) {
      const auto leaf = x.clone().set_requires_grad(true);
      torch::Tensor y;
      {
        const Autocast autocast(amp, torch::kCPU);
        y = layer(leaf);
      }
      (y.to(torch::kFloat) * weight).sum().backward();
      return std::pair(y.detach(), leaf.grad());
    };
    const int64_t begin = world.rank() * each;
    const auto [y, dx] = run(mine, all.narrow(0, begin, each), weights.narrow(0, begin, each));
    const auto [expected, expected_dx] = run(whole, all, weights);
    EXPECT_EQ(y.scalar_type(), amp.dtype());
    EXPECT_NO_THROW(expect_close("running mean", mine->running_mean, whole->running_mean, 1e-5));
    EXPECT_NO_THROW(expect_close("running variance", mine->running_var, whole->running_var, 1e-5));
    const double rounding = amp.dtype() == torch::kBFloat16 ? 4e-3 : 5e-4;  // one, of an output or a gradient to 8 or 11 bits
    EXPECT_NO_THROW(expect_close("output", y.to(torch::kFloat), expected.narrow(0, begin, each).to(torch::kFloat), rounding));
    EXPECT_NO_THROW(expect_close("gradient", dx.to(torch::kFloat), expected_dx.narrow(0, begin, each).to(torch::kFloat), rounding));
  }
}

}  // namespace
}  // namespace manyranks
