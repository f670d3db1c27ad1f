// Hide communication behind computation: start it, compute, wait.
//
// You learn   what "asynchronous" promises and what it does not: a transfer goes on only while somebody moves it. In MPI that is
//             whoever calls MPI_Test or MPI_Wait; in NCCL a kernel on the GPU; in our Communicator a thread that sleeps when idle.
// Run it      mpirun -np 2 build/02_message_passing/06_overlap
//             scripts/two_nodes.sh --rate 1gbit -- build/02_message_passing/06_overlap     (a link that costs time, not CPU)
// You see     for each way: the step's time, what is exposed (step minus compute), and the part that was hidden.
//             On one host with as many ranks as cores nothing can be gained: moving the data costs the very cores that compute.
// Read next   07_cost_model.cpp; ../03_data_parallel/03_overlapped.cpp does this inside a backward pass
#include <mpi.h>

#include "comm/communicator.hpp"    // Communicator, Work
#include "launch/mpi_check.hpp"     // CHECK_MPI
#include "launch/process.hpp"       // Process
#include "measure/provenance.hpp"   // write_row, fill
#include "measure/statistics.hpp"   // median
#include "measure/table.hpp"        // Table
#include "measure/timer.hpp"        // WallTimer, StepTimer, Timing
#include "measure/verify.hpp"       // expect_equal_bits

using namespace manyranks;

namespace {

// Computation in pieces, as a backward pass is: layer after layer. One piece is one matrix product.       (256, 256) x (256, 256)
class Compute {
 public:
  explicit Compute(int pieces) : pieces_(pieces) {}
  void run(const std::function<void()>& between_pieces = [] {}) {
    for (int i = 0; i < pieces_; ++i) {
      torch::mm_out(c_, a_, b_);
      between_pieces();
    }
  }
  static double piece_seconds() {
    Compute probe(50);
    probe.run();
    WallTimer timer;
    probe.run();
    return timer.seconds() / 50;
  }

 private:
  int pieces_;
  torch::Tensor a_ = torch::randn({256, 256}), b_ = torch::randn({256, 256}), c_ = torch::empty({256, 256});
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("02_message_passing/06_overlap", "hide communication behind computation");
    int64_t bytes = 16 << 20;
    options.add("--bytes", bytes, "size of the message").in_bytes();

    // 2. Launch.
    process.start(options);
    Communicator& world = process.world();
    if (process.device().is_cuda()) throw Skip("cpu", "this lesson compares MPI's progress with ours on CPU tensors; use --device cpu");
    if (options.quick) bytes = std::min<int64_t>(bytes, 1 << 20);
    const int64_t steps = options.steps_or(15, 3), count = bytes / 4;

    // 3. Data that sums exactly, so that every way must give the same bits.                                      message: (count)
    const auto input = (torch::arange(count, torch::kInt64) % 1000).to(torch::kFloat32) + static_cast<float>(process.rank());
    auto message = input.clone();
    const float ranks = static_cast<float>(world.size());
    const auto expected = (torch::arange(count, torch::kInt64) % 1000).to(torch::kFloat32) * ranks + ranks * (ranks - 1) / 2;

    // 4. How long the communication takes alone; then as much computation. All ranks must agree on how much.
    const double comm_s = time_steps(world, 2, steps, [&] { world.all_reduce(message); }).median;
    auto pieces_tensor = torch::tensor({static_cast<int64_t>(std::max(4.0, comm_s / Compute::piece_seconds()))});
    world.broadcast(pieces_tensor, 0);
    Compute compute(static_cast<int>(pieces_tensor.item<int64_t>()));

    // 5. The ways to do both.
    MPI_Request request = MPI_REQUEST_NULL;
    const auto start_mpi = [&] { CHECK_MPI(MPI_Iallreduce(MPI_IN_PLACE, message.data_ptr<float>(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request)); };
    const auto test_mpi = [&] { int done = 0; CHECK_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE)); };
    const auto wait_mpi = [&] { CHECK_MPI(MPI_Wait(&request, MPI_STATUS_IGNORE)); };
    struct Way {
      std::string name;
      std::function<void()> step;
      bool communicates = true;
    };
    std::vector<Way> ways{
        {"compute alone", [&] { compute.run(); }, false},
        {"ours: one after the other", [&] { compute.run(); world.all_reduce(message); }},
        {"ours: async, compute, wait", [&] { Work work = world.all_reduce_async(message); compute.run(); work.wait(); }},
    };
    if (process.has_mpi()) {
      ways.push_back({"MPI: one after the other", [&] { compute.run(); start_mpi(); wait_mpi(); }});
      ways.push_back({"MPI: Iallreduce, compute, wait", [&] { start_mpi(); compute.run(); wait_mpi(); }});
      ways.push_back({"MPI: the same, MPI_Test between pieces", [&] { start_mpi(); compute.run(test_mpi); wait_mpi(); }});
    }

    // 6. Verify each way, then time them in turn, so that noise of the machine falls on all alike.
    std::vector<StepTimer> timers(ways.size(), StepTimer(1));
    for (int64_t step = 0; step < steps + 1; ++step) {
      for (size_t w = 0; w < ways.size(); ++w) {
        message.copy_(input);
        world.barrier();
        timers[w].start();
        ways[w].step();
        timers[w].stop();
        if (ways[w].communicates) expect_equal_bits(ways[w].name, message, expected);
      }
    }
    if (options.verify_only) return;

    // 7. Report. exposed = step - compute; hidden = 1 - exposed / what communication costs one after the other.
    Table table({"way", "step", "exposed", "hidden"});
    double compute_s = 0, cost_s = 0;
    for (size_t w = 0; w < ways.size(); ++w) {
      const Timing timing = timers[w].over_ranks(world);
      if (w == 0) compute_s = timing.median;
      const double exposed_s = timing.median - compute_s;
      const bool baseline = ways[w].name.ends_with("one after the other");
      if (baseline) cost_s = exposed_s;
      const std::string hidden = w == 0 || baseline || cost_s <= 0 ? "" : fmt::format("{:.0f}%", 100 * (1 - exposed_s / cost_s));
      table.add({ways[w].name, format_seconds(timing.median), w ? format_seconds(std::max(0.0, exposed_s)) : "", hidden});
      Row row;
      row.set("variant", ways[w].name).set("workload", "all_reduce + matrix products").set("kind", "measured").set("bytes", bytes).set("dtype", "float32");
      row.set("compute_s", compute_s).set("exposed_comm_s", exposed_s);
      fill(row, world);
      fill(row, timing);
      write_row(process, row);
    }
    if (process.is_root()) {
      fmt::print("all_reduce of {} on {} rank(s), medians of {} steps, the ways in turn\n{}", format_bytes(bytes), world.size(), steps, table.text(2));
      if (process.nodes() == 1 && world.size() > 1)
        fmt::print("  one host: the transfer is copying by the same cores that compute, so hiding it gains little or nothing here\n");
    }
  });
}
