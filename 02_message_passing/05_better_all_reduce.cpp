// Five all-reduces, one table: which wins at what size, and why.
//
// You learn   that the ring is the best for large messages and a poor choice for small ones: it starts 2 (p-1) messages where
//             recursive doubling starts log2 p; that Rabenseifner has both virtues on powers of two; that between hosts two levels pay,
//             because the slow link then carries 1/g of the bytes; that on one host nothing beats not sending at all.
// Run it      mpirun -np 2 build/02_message_passing/05_better_all_reduce
//             mpirun -np 4 build/02_message_passing/05_better_all_reduce
//             scripts/two_nodes.sh --ranks-per-node 2 --rate 1gbit build/02_message_passing/05_better_all_reduce
// You see     for each size: messages and bytes per rank as counted, the time of each, and the fastest marked *.
// Read next   common/comm/algorithms.hpp has all of them, 20 lines each; 07_cost_model.cpp predicts this table
#include "comm/communicator.hpp"   // Communicator
#include "launch/process.hpp"      // Process
#include "measure/provenance.hpp"  // fill, write_row
#include "measure/statistics.hpp"  // median
#include "measure/table.hpp"       // Table
#include "measure/timer.hpp"       // WallTimer
#include "measure/verify.hpp"      // expect_equal_bits
#include "mpi_transport.hpp"       // MpiTransport, TwoLevel, RawMpi

using namespace manyranks;

namespace {

struct Algorithm {
  std::string name;
  std::function<void(const Buffer&)> run;
};

// Whole numbers: their float sums are exact in any order, so all five must agree bit by bit.                              (count)
torch::Tensor input(int64_t count, int rank) { return torch::remainder(torch::arange(count, torch::kInt32), 101).add_(rank).to(torch::kFloat32); }

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("02_message_passing/05_better_all_reduce", "five all-reduces: which wins at what size");
    int64_t largest = 16 << 20;
    options.add("--max-bytes", largest, "largest size").in_bytes();

    // 2. Launch: bare MPI messages under the first four, the Communicator for the last.
    process.start(options);
    Communicator& world = process.world();
    RawMpi mpi(process);
    MpiTransport net(mpi.world);
    TwoLevel levels(mpi, process.local_size());
    if (options.quick) largest = std::min<int64_t>(largest, 256 << 10);
    const int64_t samples = options.steps_or(9, 2);

    // 3. The contenders. Each works in place.
    const std::vector<Algorithm> algorithms{
        {"ring", [&](const Buffer& b) { ring_all_reduce(net, b, ReduceOp::sum); }},
        {"recursive doubling", [&](const Buffer& b) { recursive_doubling_all_reduce(net, b, ReduceOp::sum); }},
        {"Rabenseifner", [&](const Buffer& b) { rabenseifner_all_reduce(net, b, ReduceOp::sum); }},
        {"two-level", [&](const Buffer& b) { two_level_all_reduce(*levels.inner, *levels.outer, b, ReduceOp::sum); }},
        {"Communicator", [&](const Buffer& b) { world.all_reduce(torch::from_blob(b.data, {static_cast<int64_t>(b.count)})); }},
        {"MPI_Allreduce", [&](const Buffer& b) { CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, b.data, static_cast<int>(b.count), MPI_FLOAT, MPI_SUM, mpi.world)); }},
    };
    const auto sent = [&] { return std::pair{net.messages + levels.inner->messages + levels.outer->messages, net.bytes_sent + levels.inner->bytes_sent + levels.outer->bytes_sent}; };

    Table counts({"per rank", "messages", "bytes sent / message size"}), times({"size"});
    std::vector<std::string> header{"size"};
    for (const auto& algorithm : algorithms) header.push_back(algorithm.name);
    times = Table(header);
    for (int64_t bytes = 8; bytes <= largest; bytes *= 8) {
      const int64_t count = bytes / 4;
      const auto original = input(count, mpi.rank);
      auto expected = torch::zeros({count});
      for (int r = 0; r < mpi.size; ++r) expected += input(count, r);
      auto data = original.clone();
      const Buffer buffer{data.data_ptr(), static_cast<size_t>(count), Dtype::float32};

      // 4. Verify each, and count what it sends.
      for (const auto& algorithm : algorithms) {
        data.copy_(original);
        world.barrier();
        const auto before = sent();
        algorithm.run(buffer);
        const auto after = sent();
        expect_equal_bits(algorithm.name, data, expected);
        if (bytes * 8 > largest && after.first > before.first)
          counts.add({algorithm.name, std::to_string(after.first - before.first), fmt::format("{:.2f}", static_cast<double>(after.second - before.second) / static_cast<double>(bytes))});
      }
      if (options.verify_only) continue;

      // 5. Time them in turn; a sample is enough calls to take about half a millisecond.
      std::vector<std::vector<double>> seconds(algorithms.size());
      const int64_t calls = std::clamp<int64_t>((1 << 20) / bytes, 1, options.quick ? 5 : 50);
      for (int64_t s = 0; s < samples; ++s) {
        for (size_t a = 0; a < algorithms.size(); ++a) {
          world.barrier();
          algorithms[a].run(buffer);  // wakes everybody up
          WallTimer timer;
          for (int64_t i = 0; i < calls; ++i) algorithms[a].run(buffer);
          seconds[a].push_back(timer.seconds() / static_cast<double>(calls));
        }
      }

      // 6. Report: the slowest rank counts.
      std::vector<double> medians;
      for (auto& samples_of_one : seconds) {
        auto slowest = torch::tensor(samples_of_one, torch::kFloat64);
        world.all_reduce(slowest, ReduceOp::max);
        medians.push_back(slowest.median().item<double>());
      }
      const size_t best = std::min_element(medians.begin(), medians.end()) - medians.begin();
      std::vector<std::string> cells{format_bytes(bytes)};
      for (size_t a = 0; a < algorithms.size(); ++a) {
        cells.push_back(format_seconds(medians[a]) + (a == best ? " *" : "  "));
        Row row;
        row.set("variant", algorithms[a].name).set("workload", "all_reduce").set("kind", "measured").set("dtype", "float32").set("bytes", bytes).set("median_s", medians[a]);
        row.set("iterations", samples).set("backend", world.backend()).set("transport", algorithms[a].name == "Communicator" ? world.transport() : "MPI messages");
        write_row(process, row);
      }
      times.add(cells);
    }
    if (!process.is_root()) return;
    fmt::print("{} rank(s); two-level takes {} rank(s) as a node; all results equal bit by bit\n{}", mpi.size, levels.group(), counts.text(2));
    if (!options.verify_only) fmt::print("\nmedian time, * the fastest\n{}", times.text(2));
  });
}
