// Predict, then measure: latency and bandwidth of this machine, fitted on a few sizes, tell what every algorithm will cost.
//
// You learn   that a collective's time is no mystery: count its messages, its bytes and its additions, multiply by what one of each
//             costs here. A prediction that fails tells you what you did not know about the machine.
// Run it      mpirun -np 2 build/02_message_passing/07_cost_model
//             mpirun -np 4 build/02_message_passing/07_cost_model      fitted on 2 and 3 ranks, predicts 4
//             scripts/two_nodes.sh --ranks-per-node 2 --rate 1gbit build/02_message_passing/07_cost_model      ring against two levels
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

// Some ranks of the world as a job of their own; the others sleep in a barrier of the Communicator meanwhile.
class Some {
 public:
  Some(const RawMpi& mpi, bool in) : in_(in) {
    CHECK_MPI(MPI_Comm_split(mpi.world, in_ ? 0 : MPI_UNDEFINED, mpi.rank, &comm_));
    if (in_) net.emplace(comm_);
  }
  ~Some() {
    if (in_ && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  Some(const Some&) = delete;
  Some& operator=(const Some&) = delete;
  bool in() const { return in_; }

  mutable std::optional<MpiTransport> net;

 private:
  bool in_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

// Calls to be timed, each once per round: a slow minute of the machine then slows all of them alike, those that are fitted and those
// that are predicted. A call's time is the median over rounds of its slowest member.
class Rounds {
 public:
  // Returns the number under which seconds() will know it.
  size_t add(const Some& some, int64_t bytes, std::function<void()> call) {
    entries_.push_back({&some, std::clamp<int64_t>((512 << 10) / std::max<int64_t>(bytes, 1), 1, 40), std::move(call), {}});
    return entries_.size() - 1;
  }
  void run(Communicator& world, int64_t rounds) {
    for (int64_t round = 0; round < rounds; ++round) {
      for (auto& entry : entries_) {
        world.barrier();
        double mine = 0;
        if (entry.some->in()) {
          entry.call();
          WallTimer timer;
          for (int64_t i = 0; i < entry.calls; ++i) entry.call();
          mine = timer.seconds() / static_cast<double>(entry.calls);
        }
        entry.samples.push_back(mine);
      }
    }
    for (auto& entry : entries_) {
      auto slowest = torch::tensor(entry.samples, torch::kFloat64);
      world.all_reduce(slowest, ReduceOp::max);
      entry.samples.assign(slowest.data_ptr<double>(), slowest.data_ptr<double>() + slowest.numel());
    }
  }
  double seconds(size_t number) const { return median(entries_[number].samples); }

 private:
  struct Entry {
    const Some* some;
    int64_t calls;
    std::function<void()> call;
    std::vector<double> samples;
  };
  std::vector<Entry> entries_;
};

// One step of a ring or a butterfly, for many sizes: all members pass `bytes` on at once, to the rank `shift` further on. What is sent was written by this core just
// before, as in the algorithms: by the addition, or by the receive before. (Sending an untouched buffer again and again would flatter
// the machine.) Sizes are 3 x 2^k, and so never those of the predictions.
class StepProbe {
 public:
  StepProbe(Rounds& rounds, const Some& some, bool adding, int64_t first, int64_t largest, int shift = 1) {
    for (int64_t bytes = first / 2 * 3; bytes <= 2 * largest; bytes *= 2) {
      const auto data = std::make_shared<std::vector<float>>(bytes / 4), arrived = std::make_shared<std::vector<float>>(bytes / 4);
      const auto call = [&some, adding, bytes, data, arrived, shift] {
        const int rank = some.net->rank(), size = some.net->size();
        some.net->send_recv((rank + shift) % size, data->data(), bytes, (rank + size - shift) % size, arrived->data(), bytes);
        if (adding) reduce_into(data->data(), arrived->data(), data->size(), Dtype::float32, ReduceOp::sum);
        else std::swap(*data, *arrived);
      };
      points_.emplace_back(bytes, rounds.add(some, bytes, call));
    }
  }
  // `sharing` members send over one link: the bytes of a step are those of all of them.
  std::vector<Point> points(const Rounds& rounds, int sharing = 1) const {
    std::vector<Point> points;
    for (const auto& [bytes, number] : points_) points.push_back({static_cast<double>(bytes * sharing), rounds.seconds(number)});
    return points;
  }

 private:
  std::vector<std::pair<int64_t, size_t>> points_;
};

// An all-reduce to be predicted and timed, for every fourth power of two.
class Race {
 public:
  using Run = std::function<void(const Buffer&)>;
  Race(Rounds& rounds, const Some& everybody, int rank, std::string name, const Run& run, int64_t first, int64_t largest) : name_(std::move(name)) {
    const int ranks = everybody.net->size();
    for (int64_t bytes = first; bytes <= largest; bytes *= 4) {
      // Verify on exact input, then time.                                                                            data: (bytes / 4)
      auto data = torch::full({bytes / 4}, static_cast<float>(rank + 1));
      const Buffer buffer{data.data_ptr(), static_cast<size_t>(data.numel()), Dtype::float32};
      run(buffer);
      expect_equal_bits(name_, data, torch::full({bytes / 4}, static_cast<float>(ranks * (ranks + 1) / 2)));
      data.zero_();
      points_.emplace_back(bytes, rounds.add(everybody, bytes, [run, buffer, data] { run(buffer); }));
    }
  }

  // Adds a line per size to the table and a row to the CSV; collects the errors.
  std::vector<Point> report(Process& process, const Rounds& rounds, const std::function<double(double)>& predict, Table& table, std::vector<double>& errors) const {
    std::vector<Point> times;
    for (const auto& [bytes, number] : points_) {
      const double measured = rounds.seconds(number), predicted = predict(static_cast<double>(bytes));
      times.push_back({static_cast<double>(bytes), measured});
      errors.push_back(std::abs(predicted / measured - 1));
      table.add({name_, format_bytes(bytes), format_seconds(predicted), format_seconds(measured), fmt::format("{:+.0f}%", 100 * (predicted / measured - 1))});
      Row row;
      row.set("variant", name_).set("workload", "all_reduce").set("kind", "measured").set("dtype", "float32").set("bytes", bytes).set("median_s", measured);
      row.set("predicted", predicted).set("measured", measured).set("unit", "s").set("transport", "MPI messages");
      write_row(process, row);
    }
    return times;
  }

 private:
  std::string name_;
  std::vector<std::pair<int64_t, size_t>> points_;
};

void print_table(const Process& process, const Table& table, const std::vector<double>& errors) {
  if (process.is_root()) fmt::print("\n{}median absolute error {:.0f}% on {} predictions, none of them fitted\n", table.text(2), 100 * median(errors), errors.size());
}

const std::vector<std::string> header{"algorithm", "size", "predicted", "measured", "error"};

// Several nodes: does the algorithm that knows of them beat the one that does not, and by as much as the model says?
void compare_over_nodes(Process& process, const RawMpi& mpi, int64_t largest, int64_t rounds_wanted) {
  const int per_node = process.local_size();
  const Some neighbours(mpi, mpi.rank < 2), everybody(mpi, true);
  TwoLevel levels(mpi, per_node);
  Rounds rounds;
  const StepProbe pass(rounds, neighbours, false, 4 << 10, largest), add(rounds, neighbours, true, 4 << 10, largest), across(rounds, everybody, false, 4 << 10, largest / 2, per_node);
  const Race ring(rounds, everybody, mpi.rank, "ring", [&](const Buffer& b) { ring_all_reduce(*everybody.net, b, ReduceOp::sum); }, 128 << 10, largest);
  const Race two(rounds, everybody, mpi.rank, "two-level", [&](const Buffer& b) { two_level_all_reduce(*levels.inner, *levels.outer, b, ReduceOp::sum); }, 128 << 10, largest);
  if (process.options().verify_only) return;
  rounds.run(process.world(), rounds_wanted);
  const TwoLevelModel model{{Step(pass.points(rounds)), Step(add.points(rounds)), static_cast<double>(per_node)}, PiecewiseLine(across.points(rounds, per_node)), process.nodes(), per_node};
  if (process.is_root()) fmt::print("inside a node {}\nfrom node to node {}\n", model.inside.pass.alone.text(), model.link.text());
  Table table(header);
  std::vector<double> errors;
  const auto flat = ring.report(process, rounds, [&](double n) { return model.ring(n); }, table, errors);
  const auto levelled = two.report(process, rounds, [&](double n) { return model.two_level(n); }, table, errors);
  print_table(process, table, errors);
  for (size_t i = 0; process.is_root() && i < flat.size(); ++i) {
    const double n = flat[i].bytes, measured = flat[i].seconds / levelled[i].seconds, predicted = model.ring(n) / model.two_level(n);
    fmt::print("{:>10}: two-level is {:.2f}x as fast as the ring, predicted {:.2f}x ({:+.0f}%)\n", format_bytes(static_cast<int64_t>(n)), measured, predicted, 100 * (predicted / measured - 1));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("02_message_passing/07_cost_model", "fit latency and bandwidth, predict every algorithm");
    int64_t largest = 8 << 20;
    options.add("--max-bytes", largest, "largest size predicted").in_bytes();

    // 2. Launch.
    process.start(options);
    Communicator& world = process.world();
    RawMpi mpi(process);
    if (mpi.size < 2) {
      if (process.is_root()) fmt::print("one rank sends nothing: predicted 0, measured 0; start with mpirun -np 2 or more\n");
      return;
    }
    if (options.quick) largest = std::min<int64_t>(largest, 256 << 10);
    const int64_t rounds_wanted = options.steps_or(15, 3);
    if (process.nodes() > 1 && process.local_size() > 1) return compare_over_nodes(process, mpi, largest, rounds_wanted);

    // 3. What will be fitted: the two kinds of steps on two ranks; if ranks must share cores, also on three, which tells what that costs.
    const int p = mpi.size;
    const double cores = std::min<double>(std::thread::hardware_concurrency(), p);
    const bool crowded = p > 3 && cores < 3;
    const Some two(mpi, mpi.rank < 2), three(mpi, mpi.rank < 3), everybody(mpi, true);
    Rounds rounds;
    const StepProbe pass(rounds, two, false, 16, largest), add(rounds, two, true, 16, largest);
    std::optional<StepProbe> pass3, add3;
    if (crowded) pass3.emplace(rounds, three, false, 16, largest), add3.emplace(rounds, three, true, 16, largest);

    // 4. What will be predicted: other sizes, on all ranks. Verified now, timed in the same rounds.
    Transport& net = *everybody.net;
    const Race ring(rounds, everybody, mpi.rank, "ring", [&](const Buffer& b) { ring_all_reduce(net, b, ReduceOp::sum); }, 128, largest);
    const Race doubling(rounds, everybody, mpi.rank, "recursive doubling", [&](const Buffer& b) { recursive_doubling_all_reduce(net, b, ReduceOp::sum); }, 128, largest);
    const Race halving(rounds, everybody, mpi.rank, "Rabenseifner", [&](const Buffer& b) { rabenseifner_all_reduce(net, b, ReduceOp::sum); }, 128, largest);
    if (options.verify_only) return;
    rounds.run(world, rounds_wanted);

    // 5. Fit.
    CostModel model{Step(pass.points(rounds)), Step(add.points(rounds)), cores};
    if (process.is_root()) fmt::print("pass on   {}\npass, add {}\n", model.pass.alone.text(), model.add.alone.text());
    if (crowded) {
      model.pass.crowded = PiecewiseLine(pass3->points(rounds));
      model.add.crowded = PiecewiseLine(add3->points(rounds));
      model.pass.crowd = model.add.crowd = std::ceil(3 / cores);
      if (process.is_root()) fmt::print("with {:g} ranks on the busiest core\npass on   {}\npass, add {}\n", model.pass.crowd, model.pass.crowded->text(), model.add.crowded->text());
    }

    // 6. Predict, and report beside what was measured.
    Table table(header);
    std::vector<double> errors;
    ring.report(process, rounds, [&](double n) { return model.ring(n, p); }, table, errors);
    doubling.report(process, rounds, [&](double n) { return model.recursive_doubling(n, p); }, table, errors);
    halving.report(process, rounds, [&](double n) { return model.rabenseifner(n, p); }, table, errors);
    print_table(process, table, errors);
  });
}
