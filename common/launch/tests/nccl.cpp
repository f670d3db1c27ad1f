// An all-reduce over NCCL, one GPU for each rank. Where a node has fewer GPUs than ranks, or the build has no NCCL, it
// is skipped (77), and fails where MANYRANKS_REQUIRE names nccl.
#include "launch/torch.hpp"

#include "comm/communicator.hpp"  // Communicator
#include "launch/process.hpp"     // Process, Options, Skip
#include "measure/verify.hpp"     // expect_equal_bits

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    const int gpus = static_cast<int>(torch::cuda::device_count());
    const int ranks = process.identity().local_world_size.value_or(process.world_size());
    if (gpus < ranks)
      throw Skip("nccl",
                 fmt::format("{} rank(s) on {} need as many GPUs, and {} can be used", ranks, process.host(), gpus));
    Options options("common/nccl", "Sums over NCCL against the sums that they must be.");
    process.start(options);
    Communicator& world = process.world();
    if (world.backend() != "nccl")
      throw Skip("nccl", fmt::format("the backend is {}: {}", world.backend(), world.why()));
    const int64_t n = world.size();
    for (const int64_t count : {1, 1000, 1 << 20}) {
      // Small whole numbers: exact in float32, so that the order of the sum does not matter.
      const auto mine = (torch::arange(count) % 97 + world.rank()).to(torch::kFloat);
      auto sum = mine.to(process.device());
      world.all_reduce(sum);
      const auto expected = (n * (torch::arange(count) % 97) + n * (n - 1) / 2).to(torch::kFloat);
      expect_equal_bits(fmt::format("sum of {} elements", count), sum.cpu(), expected);
    }
    if (process.is_root()) fmt::print("  sums over NCCL are right on {} rank(s)\n", n);
  });
}
