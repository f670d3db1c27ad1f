// Break it on purpose: the four mistakes that everybody makes once, with bare MPI and with our checks.
//
// You learn   what a library promises when ranks disagree (MPI and NCCL: nothing), and what finding the mistake takes:
//             a fingerprint with every call, a time limit on every wait, a checksum of what should be equal.
// Run it      build/02_message_passing/08_break_it                 all four, on 2 ranks, each as a job of its own
//             mpirun -np 4 build/02_message_passing/08_break_it    the same, on 4 ranks
//             mpirun -np 2 build/02_message_passing/08_break_it --fault dtype           one of them, our way
//             mpirun -np 2 build/02_message_passing/08_break_it --fault dtype --bare    and with bare MPI
// You see     bare MPI hangs, or ends with exit 0 and wrong numbers; ours ends within the time limit and says who did what.
// Read next   common/comm/call.hpp (the fingerprint), ../03_data_parallel
#include <mpi.h>

#include <fstream>

#include "child_jobs.hpp"         // run_by_variables, run_by_mpirun
#include "comm/communicator.hpp"  // Communicator
#include "launch/mpi_check.hpp"   // CHECK_MPI
#include "launch/process.hpp"     // Process

using namespace manyranks;

namespace {

struct Fault {
  std::string name, story;
  int exit_code;             // what our checks end with
  std::string must_say;      // a word that the error line must have
  bool bare_hangs;           // otherwise it ends with exit 0 and wrong numbers
};
const std::vector<Fault> faults{
    {"mismatch", "rank 0 calls all_reduce, the others broadcast", 70, "broadcast", true},
    {"missing", "the last rank forgets one all_reduce", 75, "all_reduce", true},
    {"dtype", "rank 0 gives 1024 floats, the others 512 doubles: as many bytes", 70, "float64", false},
    {"seed", "each rank draws its initial weights with its own seed", 70, "weights", false},
};

// The seed fault, for both ways: weights that should be the same on all ranks.                                    (1000)
torch::Tensor replica(const Process& process) {
  torch::manual_seed(1 + process.rank());  // the mistake: `+ process.rank()`
  return torch::randn({1000});
}

double checksum(const torch::Tensor& weights) {
  // Position-weighted, so that two swapped elements show.
  return (weights.to(torch::kFloat64) * torch::arange(1, weights.numel() + 1, torch::kFloat64)).sum().item<double>();
}

void run_ours(Process& process, const std::string& fault) {
  Communicator& world = process.world();
  auto ones = torch::ones({1024});
  if (fault == "mismatch") {
    if (process.is_root()) world.all_reduce(ones);
    else world.broadcast(ones, 0);
  } else if (fault == "missing") {
    if (process.rank() != process.world_size() - 1) world.all_reduce(ones);
    else std::this_thread::sleep_for(std::chrono::seconds(30));  // computes on, unaware
  } else if (fault == "dtype") {
    world.all_reduce(process.is_root() ? ones : torch::ones({512}, torch::kFloat64));
  } else if (fault == "seed") {
    // The check that catches it: one number per rank, once, before the first step.
    auto mine = torch::tensor({checksum(replica(process))}, torch::kFloat64);
    auto all = torch::empty({process.world_size()}, torch::kFloat64);
    world.all_gather(all, mine);
    for (int r = 1; r < process.world_size(); ++r)
      if (all[r].item<double>() != all[0].item<double>())
        throw disagree_error("checking replicas", fmt::format("initial weights differ: checksum {:.6g} on rank 0, {:.6g} on rank {}", all[0].item<double>(), all[r].item<double>(), r),
                             "the same seed on every rank, or broadcast the weights from rank 0");
  }
}

// The same mistakes with nothing but MPI. Prints one line if it gets that far.
void run_bare(Process& process, const std::string& fault) {
  std::vector<float> ones(1024, 1.0f);
  std::string outcome;
  if (fault == "mismatch") {
    if (process.is_root()) CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, ones.data(), 1024, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    else CHECK_MPI(MPI_Bcast(ones.data(), 1024, MPI_FLOAT, 0, MPI_COMM_WORLD));
    outcome = fmt::format("ones[0] is {}", ones[0]);
  } else if (fault == "missing") {
    if (process.rank() != process.world_size() - 1) CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, ones.data(), 1024, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    else std::this_thread::sleep_for(std::chrono::seconds(30));
    outcome = "done";
  } else if (fault == "dtype") {
    std::vector<double> doubles(512, 1.0);
    if (process.is_root()) CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, ones.data(), 1024, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    else CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, doubles.data(), 512, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    outcome = fmt::format("1 + 1 = {}, and no error", ones[0]);
  } else if (fault == "seed") {
    auto gradient = replica(process);
    CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, gradient.data_ptr<float>(), 1000, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    outcome = "training goes on with different models, and no error";
  }
  if (process.is_root()) fmt::print("bare MPI: {}\n", outcome);
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("02_message_passing/08_break_it", "four mistakes, with bare MPI and with our checks");
    std::string fault;
    bool bare = false;
    options.add("--fault", fault, "run only this one, here and now").one_of({"mismatch", "missing", "dtype", "seed"});
    options.add("--bare", bare, "with bare MPI");

    // 2. Launch. With --fault this rank takes part in the accident itself.
    process.start(options);
    if (!fault.empty() && bare) {
      if (!process.has_mpi()) throw unavailable_error("--bare", "bare MPI needs mpirun", "mpirun -np 2 " + own_path() + " --fault " + fault + " --bare");
      return run_bare(process, fault);
    }
    if (!fault.empty()) {
      if (process.world_size() < 2) throw usage_error("--fault", "one rank cannot disagree with itself", "mpirun -np 2");
      run_ours(process, fault);
      throw verify_error("--fault " + fault, "the mistake was not caught");
    }

    // 3. Each mistake as a job of its own, started by rank 0, so that we can watch it end. The other ranks of this job wait.
    const int ranks = std::max(2, process.world_size());
    const double patience_s = options.quick ? 4 : 8;  // a bare job that should hang is ended after this
    Communicator& world = process.world();
    if (process.is_root()) {
      for (const Fault& f : faults) {
        const auto bare_job = run_by_mpirun({own_path(), "--fault", f.name, "--bare"}, ranks, f.bare_hangs ? patience_s : 60);
        const auto our_job = run_by_variables({own_path(), "--fault", f.name, "--timeout-s", "1"}, ranks, 30);
        fmt::print("\n{}: {}\n", f.name, f.story);
        fmt::print("  bare MPI  {}\n", bare_job.hung ? fmt::format("hangs (ended by hand after {:g} s)", patience_s) : fmt::format("exit {}, \"{}\"", bare_job.exit_code, telling_line(bare_job.output)));
        fmt::print("  ours      exit {} after {:.1f} s\n            {}\n", our_job.exit_code, our_job.seconds, telling_line(our_job.output));
        // 4. Verify: ours ended by itself, with the right code and the right words; bare MPI did what the text claims.
        if (our_job.hung || our_job.exit_code != f.exit_code || telling_line(our_job.output).find(f.must_say) == std::string::npos)
          throw verify_error(f.name, fmt::format("expected exit {} and the word '{}'; all it said: {}", f.exit_code, f.must_say, our_job.output));
        if (bare_job.hung != f.bare_hangs || bare_job.exit_code != 0)
          throw verify_error(f.name, fmt::format("bare MPI {} with exit {}: {}", bare_job.hung ? "hung" : "ended", bare_job.exit_code, bare_job.output));
      }
      fmt::print("\n4 mistakes on {} ranks: all caught, each in bounded time\n", ranks);
    }
    world.barrier();
  });
}
