// A test that needs a GPU: a matrix product there against the CPU's. Without one it is skipped (77), and fails where
// MANYRANKS_REQUIRE names gpu.
#include "launch/torch.hpp"

#include "launch/process.hpp"   // Process, Options, Skip
#include "measure/verify.hpp"   // expect_close

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("common/gpu", "A matrix product on this rank's GPU against the CPU.");
    process.start(options);
    if (!process.device().is_cuda()) throw Skip("gpu", "no CUDA device on " + process.host());
    torch::manual_seed(options.seed);
    const auto a = torch::randn({256, 256}, torch::kFloat64), b = torch::randn({256, 256}, torch::kFloat64);
    const auto product = a.to(process.device()).mm(b.to(process.device()));
    expect_close("matrix product on " + process.device().str(), product, a.mm(b), 1e-12);
  });
}
