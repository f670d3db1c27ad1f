// Predict, then measure: latency and bandwidth of this machine, fitted on a few sizes, tell what every algorithm will cost.
//
// You learn   that a collective's time is no mystery: count its messages, its bytes and its additions, multiply by what one of each
//             costs here. A prediction that fails tells you what you did not know about the machine.
// Run it      mpirun -np 2 build/02_message_passing/07_cost_model
//             mpirun -np 4 build/02_message_passing/07_cost_model      fitted on 2 and 3 ranks, predicts 4
// You see     the fitted line, then predicted and measured times for sizes (and a number of ranks) that were not fitted, and the error.
// Read next   08_break_it.cpp
#include "comm/communicator.hpp"   // Communicator
#include "cost_model.hpp"          // CostModel, PiecewiseLine
#include "launch/process.hpp"      // Process
#include "measure/provenance.hpp"  // write_row
#include "measure/statistics.hpp"  // median
#include "measure/table.hpp"       // Table
#include "measure/timer.hpp"       // WallTimer
#include "measure/verify.hpp"      // expect_equal_bits
#include "mpi_transport.hpp"       // MpiTransport, RawMpi

using namespace manyranks;

namespace {

// The first `ranks` ranks of the world as a job of their own; the others sleep in a barrier of the Communicator meanwhile.
class Some {
 public:
  Some(const RawMpi& mpi, int ranks) : in_(mpi.rank < ranks) {
    CHECK_MPI(MPI_Comm_split(mpi.world, in_ ? 0 : MPI_UNDEFINED, mpi.rank, &comm_));
    if (in_) net.emplace(comm_);
  }
  ~Some() {
    if (in_ && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  Some(const Some&) = delete;
  Some& operator=(const Some&) = delete;
  bool in() const { return in_; }

  std::optional<MpiTransport> net;

 private:
  bool in_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

// Median over samples of the slowest member's time per call; the same number on every rank of the world.
double time_call(Communicator& world, const Some& some, int64_t bytes, int64_t samples, const std::function<void()>& call) {
  std::vector<double> seconds;
  const int64_t calls = std::clamp<int64_t>((512 << 10) / std::max<int64_t>(bytes, 1), 1, 40);
  for (int64_t s = 0; s < samples; ++s) {
    world.barrier();
    double mine = 0;
    if (some.in()) {
      call();
      WallTimer timer;
      for (int64_t i = 0; i < calls; ++i) call();
      mine = timer.seconds() / static_cast<double>(calls);
    }
    seconds.push_back(mine);
  }
  auto slowest = torch::tensor(seconds, torch::kFloat64);
  world.all_reduce(slowest, ReduceOp::max);
  return slowest.median().item<double>();
}

// All members pass `bytes` to the right at once, as a ring and a butterfly do.
std::vector<Point> measure_exchange(Communicator& world, Some& some, const std::vector<int64_t>& sizes, int64_t samples) {
  std::vector<Point> points;
  for (const int64_t bytes : sizes) {
    std::vector<std::byte> out(bytes), in(bytes);
    const auto call = [&] { some.net->send_recv((some.net->rank() + 1) % some.net->size(), out.data(), bytes, (some.net->rank() + some.net->size() - 1) % some.net->size(), in.data(), bytes); };
    points.push_back({static_cast<double>(bytes), time_call(world, some, bytes, samples, call)});
  }
  return points;
}

std::vector<Point> measure_add(Communicator& world, Some& some, const std::vector<int64_t>& sizes, int64_t samples) {
  std::vector<Point> points;
  for (const int64_t bytes : sizes) {
    std::vector<float> to(bytes / 4, 1.0f), from(bytes / 4, 0.0f);
    const auto call = [&] { reduce_into(to.data(), from.data(), to.size(), Dtype::float32, ReduceOp::sum); };
    points.push_back({static_cast<double>(bytes), time_call(world, some, bytes, samples, call)});
  }
  return points;
}

std::vector<int64_t> every_fourth_power(int64_t first, int64_t last) {
  std::vector<int64_t> sizes;
  for (int64_t bytes = first; bytes <= last; bytes *= 4) sizes.push_back(bytes);
  return sizes;
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("02_message_passing/07_cost_model", "fit latency and bandwidth, predict every algorithm");
    int64_t largest = 8 << 20;
    options.app().add_option("--max-bytes", largest, "largest size predicted")->transform(CLI::AsSizeValue(false));

    // 2. Launch.
    process.start(options);
    Communicator& world = process.world();
    RawMpi mpi(process);
    if (mpi.size < 2) {
      if (process.is_root()) fmt::print("one rank sends nothing: predicted 0, measured 0; start with mpirun -np 2 or more\n");
      return;
    }
    if (options.quick) largest = std::min<int64_t>(largest, 256 << 10);
    const int64_t samples = options.steps_or(15, 3);

    // 3. Fit on two ranks: sizes 16 B, 64 B, 256 B, ... If ranks must share cores, three ranks tell how much that costs.
    const auto fitted = every_fourth_power(16, largest);
    Some two(mpi, 2);
    CostModel model{PiecewiseLine(measure_exchange(world, two, fitted, samples)), PiecewiseLine(measure_add(world, two, fitted, samples))};
    model.cores = std::min<double>(std::thread::hardware_concurrency(), mpi.size);
    if (mpi.size > 3 && mpi.size > model.cores) {
      Some three(mpi, 3);
      std::vector<double> ratios;
      for (const Point& point : measure_exchange(world, three, fitted, samples)) ratios.push_back(point.seconds / model.exchange(point.bytes));
      model.contention_slope = std::max(0.0, (median(ratios) - 1) / (3 / model.cores - 1));
    }
    if (process.is_root()) {
      fmt::print("exchange  {}\nadd       {}\n", model.exchange.text(), model.add.text());
      fmt::print("cores     {:g} for {} ranks: everything takes {:.2f}x as long\n\n", model.cores, mpi.size, model.contention(mpi.size));
    }

    // 4. Predict and measure what was not fitted: sizes between the fitted ones, on all ranks.
    struct Algorithm {
      std::string name;
      void (*run)(Transport&, const Buffer&, ReduceOp);
      double (CostModel::*predict)(double, int) const;
    };
    const std::vector<Algorithm> algorithms{{"ring", ring_all_reduce, &CostModel::ring},
                                            {"recursive doubling", recursive_doubling_all_reduce, &CostModel::recursive_doubling},
                                            {"Rabenseifner", rabenseifner_all_reduce, &CostModel::rabenseifner}};
    Some everybody(mpi, mpi.size);
    Table table({"algorithm", "size", "predicted", "measured", "error"});
    std::vector<double> errors;
    for (const auto& algorithm : algorithms) {
      for (const int64_t bytes : every_fourth_power(128, largest)) {
        // Verify on exact input, then time.                                                                          data: (bytes / 4)
        auto data = torch::full({bytes / 4}, static_cast<float>(mpi.rank + 1));
        const Buffer buffer{data.data_ptr(), static_cast<size_t>(data.numel()), Dtype::float32};
        algorithm.run(*everybody.net, buffer, ReduceOp::sum);
        expect_equal_bits(algorithm.name, data, torch::full({bytes / 4}, static_cast<float>(mpi.size * (mpi.size + 1) / 2)));
        if (options.verify_only) continue;
        const double measured = time_call(world, everybody, bytes, samples, [&] { algorithm.run(*everybody.net, buffer, ReduceOp::sum); });
        const double predicted = (model.*algorithm.predict)(static_cast<double>(bytes), mpi.size);
        errors.push_back(std::abs(predicted / measured - 1));
        table.add({algorithm.name, format_bytes(bytes), format_seconds(predicted), format_seconds(measured), fmt::format("{:+.0f}%", 100 * (predicted / measured - 1))});
        Row row;
        row.set("variant", algorithm.name).set("workload", "all_reduce").set("kind", "measured").set("dtype", "float32").set("bytes", bytes).set("median_s", measured);
        row.set("predicted", predicted).set("measured", measured).set("unit", "s").set("iterations", samples).set("transport", "MPI messages");
        write_row(process, row);
      }
    }

    // 5. Report.
    if (process.is_root() && !errors.empty()) fmt::print("{}median absolute error {:.0f}% on {} predictions, none of them fitted\n", table.text(2), 100 * median(errors), errors.size());
  });
}
