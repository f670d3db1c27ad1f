// Our all-reduce through the public Communicator (checks and watchdog on), on ordinary and on registered memory, beside
// MPI_Allreduce: 8 B to 64 MiB, interleaved, the order alternating, medians of the slowest rank.
//
//   mpirun -n 2 build/common/comm/bench_all_reduce
#include <mpi.h>

#include <algorithm>
#include <chrono>

#include "comm/communicator.hpp"
#include "launch/mpi_check.hpp"
#include "launch/process.hpp"
#include "measure/csv.hpp"
#include "measure/statistics.hpp"

using namespace manyranks;

namespace {

struct Side {
  const char* name;
  std::function<void()> call;
  std::vector<double> samples;  // seconds per call, one per round
};

double seconds_per_call(const Side& side, int calls) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) side.call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("bench_all_reduce", "our all-reduce beside MPI_Allreduce");
    int64_t largest = 64 << 20;
    int rounds = 21;
    options.add("--largest", largest, "bytes of the largest message");
    options.add("--rounds", rounds, "samples per size and side");
    process.start(options);
    if (!process.has_mpi()) throw Skip("mpi", "the rival is MPI_Allreduce: start it with mpirun");
    if (options.quick) largest = 1 << 16, rounds = 3;
    Communicator& world = process.world();
    if (process.is_root()) fmt::print("{:>10} {:>12} {:>12} {:>12} {:>8} {:>8}\n", "bytes", "ours us", "registered", "MPI us", "MPI/ours", "MPI/reg");

    for (int64_t bytes = 8; bytes <= largest; bytes *= bytes < 4096 || options.quick ? 8 : 4) {
      const int64_t count = bytes / 4;
      auto ours = torch::ones(count), theirs = torch::ones(count), registered = world.allocate({count}, torch::kFloat32).fill_(1);
      std::vector<Side> sides = {
          {"ours", [&] { world.all_reduce(ours, ReduceOp::max); }, {}},
          {"registered", [&] { world.all_reduce(registered, ReduceOp::max); }, {}},
          {"MPI_Allreduce", [&] { CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, theirs.data_ptr(), static_cast<int>(count), MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD)); }, {}},
      };
      const int calls = options.quick ? 3 : static_cast<int>(std::clamp<int64_t>((4 << 20) / bytes, 1, 1000));
      for (auto& side : sides) seconds_per_call(side, std::max(1, calls / 4));  // warm-up
      for (int round = 0; round < rounds; ++round) {
        for (size_t k = 0; k < sides.size(); ++k) {
          Side& side = sides[round % 2 ? sides.size() - 1 - k : k];
          world.barrier();
          side.samples.push_back(seconds_per_call(side, calls));
        }
      }
      for (auto& side : sides) {
        auto slowest = torch::tensor(side.samples, torch::kFloat64);
        world.all_reduce(slowest, ReduceOp::max);
        side.samples.assign(slowest.data_ptr<double>(), slowest.data_ptr<double>() + slowest.numel());
      }
      if (!process.is_root()) continue;
      const double t[3] = {median(sides[0].samples), median(sides[1].samples), median(sides[2].samples)};
      fmt::print("{:>10} {:>12.2f} {:>12.2f} {:>12.2f} {:>8.2f} {:>8.2f}\n", bytes, t[0] * 1e6, t[1] * 1e6, t[2] * 1e6, t[2] / t[0], t[2] / t[1]);
      std::fflush(stdout);
      for (int k = 0; k < 3 && !options.csv.empty(); ++k) {
        Row row;
        row.set("chapter", "common").set("lesson", "bench_all_reduce").set("variant", sides[k].name).set("kind", "measured").set("device", "cpu").set("backend", world.backend());
        row.set("transport", world.transport()).set("nodes", process.nodes()).set("ranks", world.size()).set("threads", options.threads).set("oversubscribed", process.oversubscribed());
        row.set("dtype", "float32").set("bytes", bytes).set("iterations", rounds).set("median_s", t[k]);
        row.set("algbw_GBs", bytes / t[k] / 1e9).set("busbw_GBs", bytes / t[k] / 1e9 * 2 * (world.size() - 1) / world.size()).set("host", process.host());
        CsvWriter(options.csv).append(row);
      }
    }
  });
}
