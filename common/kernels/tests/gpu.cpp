// The kernels on a GPU against the same functors on the CPU, bit by bit: sizes below a block, beyond the grid, and nothing. Without a
// GPU it is skipped (77), and fails where MANYRANKS_REQUIRE names gpu.
#include "launch/torch.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include "launch/process.hpp"  // Process, Options, Skip
#include "measure/verify.hpp"  // expect_equal_bits, expect_close
#include "train/fused.hpp"
#include "train/guarded.hpp"

using namespace manyranks;

namespace {

struct Buffers {
  torch::Tensor parameter, gradient, first, second;

  static Buffers make(int64_t count) {
    return {torch::randn({count}), torch::randn({count}) * torch::exp2(torch::randint(-30, 20, {count}).to(torch::kFloat)), torch::randn({count}), torch::rand({count})};
  }
  Buffers on(torch::Device device) const {
    const auto copy = [&](const torch::Tensor& tensor) { return tensor.to(device, torch::kFloat, /*non_blocking=*/false, /*copy=*/true); };
    return {copy(parameter), copy(gradient), copy(first), copy(second)};
  }
};

// `step` on copies here and there.
void expect_same_bits(const std::string& name, const Buffers& start, torch::Device device, const std::function<void(Buffers&)>& step) {
  Buffers here = start.on(torch::kCPU), there = start.on(device);
  step(here), step(there);
  const std::string what = fmt::format("{} of {} elements", name, start.parameter.numel());
  expect_equal_bits(what + ": parameter", there.parameter.cpu(), here.parameter);
  expect_equal_bits(what + ": gradient", there.gradient.cpu(), here.gradient);
  expect_equal_bits(what + ": first row of state", there.first.cpu(), here.first);
  expect_equal_bits(what + ": second row of state", there.second.cpu(), here.second);
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("common/kernels_gpu", "The fused kernels on this rank's GPU against the CPU, bit by bit.");
    process.start(options);
    const torch::Device device = process.device();
    if (!device.is_cuda()) throw Skip("gpu", "no CUDA device on " + process.host());
    torch::manual_seed(options.seed);
    const kernels::Sgd sgd{0.05F, 0.9F, 1e-4F, 0.25F};
    const kernels::Adam adam = kernels::adam_at_step({.weight_decay = 0.01, .decoupled = true, .gradient_scale = 0.5}, 3);
    const kernels::Guard guard{.inverse_scale = 1.0 / 1024, .max_norm = 0.5};
    for (const int64_t count : {0, 1, 255, 257, 1027, 3 * 256 * 1024 + 5}) {
      const Buffers start = Buffers::make(count);
      expect_same_bits("sgd", start, device, [&](Buffers& b) { fused_sgd(sgd, b.parameter, b.gradient, b.first); });
      expect_same_bits("adam", start, device, [&](Buffers& b) { fused_adam(adam, b.parameter, b.gradient, b.first, b.second); });
      // The sum itself is added in another order on a GPU: the steps get one and the same.
      const torch::Tensor norm = squared_norm(start.gradient);
      expect_close(fmt::format("sum of squares of {}", count), squared_norm(start.gradient.to(device)).cpu(), norm, 1e-12);
      for (const torch::Tensor& squares : {norm, torch::full_like(norm, std::numeric_limits<double>::infinity())}) {
        expect_same_bits("guarded sgd", start, device, [&](Buffers& b) { guarded_sgd({sgd, guard}, squares.to(b.parameter.device()), b.parameter, b.gradient, b.first); });
        expect_same_bits("guarded adam", start, device, [&](Buffers& b) { guarded_adam({adam, guard}, squares.to(b.parameter.device()), b.parameter, b.gradient, b.first, b.second); });
      }
      expect_same_bits("scale", start, device, [&](Buffers& b) {
        if (!scale_and_check(b.gradient, 1.0 / 3)) throw verify_error("scale", "found an infinity where there is none");
      });
      if (count == 0) continue;
      Buffers spoiled = start.on(device);
      spoiled.gradient[count - 1] = std::numeric_limits<float>::quiet_NaN();
      if (scale_and_check(spoiled.gradient, 1.0 / 3)) throw verify_error("scale", fmt::format("missed a NaN at the end of {}", count));
      if (std::isfinite(squared_norm(spoiled.gradient).item<double>())) throw verify_error("sum of squares", fmt::format("missed a NaN at the end of {}", count));
    }
    fmt::print("  {}: the bits of the CPU\n", device.str());
  });
}
