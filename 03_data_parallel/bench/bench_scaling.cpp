// Strong and weak scaling of every strategy, in one interleaved run: each round times one block of steps of each strategy in
// turn, so that all meet the same machine, and ratios are taken within a round.
//
//   mpirun -np 2 build/03_data_parallel/bench_scaling --models resnet18 --csv results/scaling.csv
//   mpirun -np 2 build/03_data_parallel/bench_scaling --models resnet18 --strategies alone,ddp@1,ddp@5,ddp@25,ddp@100
//
// alone is N independent runs at the same time: what compute costs. Exposed communication is the difference to it. single is
// one run while the other ranks sleep: what speed-up is measured against. reducer and reducer+optim are c10d::Reducer over
// our communicator, with our fused optimiser and with torch::optim. NAME@MB sets the bucket size.
#include "reducer_rival.hpp"
#include "workload.hpp"

#include <numeric>

#include "measure/allocator.hpp"
#include "measure/provenance.hpp"
#include "measure/statistics.hpp"
#include "measure/table.hpp"
#include "parallel/strategy.hpp"

using namespace manyranks;

namespace {

// Adds up the time of all optimisers that a strategy makes.
class TimedOptimizer : public Optimizer {
 public:
  TimedOptimizer(std::unique_ptr<Optimizer> inner, double& seconds) : Optimizer({}, {}), inner_(std::move(inner)), seconds_(seconds) {}
  void step(double learning_rate, double gradient_scale) override {
    const WallTimer timer;
    inner_->step(learning_rate, gradient_scale);
    seconds_ += timer.seconds();
  }
  NamedTensors state() const override { return inner_->state(); }

 private:
  std::unique_ptr<Optimizer> inner_;
  double& seconds_;
};

struct Contender {
  std::string name;
  std::shared_ptr<Model> model;
  std::unique_ptr<Strategy> strategy;
  double optimizer_s = 0, data_s = 0;  // sums
  int64_t steps = 0, held = 0, peak = 0, sent = 0;
  std::vector<double> rounds;          // seconds per step, maximum over ranks
};

int64_t held_bytes() {
  const auto& memory = CountingAllocator::get();
  return memory.live_bytes(Tag::parameters) + memory.live_bytes(Tag::gradients) + memory.live_bytes(Tag::optimizer);
}

void step(Contender& contender, const Workload& workload, int rank) {
  const WallTimer timer;
  const auto [x, y] = workload.samples(contender.steps % 4, rank);
  contender.data_s += timer.seconds();
  const MemoryTag tag(Tag::activations);
  cross_entropy(contender.strategy->forward(x), y).backward();
  contender.strategy->step(workload.learning_rate());
  ++contender.steps;
}

void build(Contender& contender, const Workload& workload, Communicator& world) {
  auto& memory = CountingAllocator::get();
  const int64_t before = held_bytes();
  const auto at = contender.name.find('@');
  const std::string kind = contender.name.substr(0, at);
  StrategyOptions options;
  if (at != std::string::npos) {
    options.buckets.bytes = static_cast<int64_t>(std::stod(contender.name.substr(at + 1)) * (1 << 20));
    options.buckets.first_bytes = std::min(options.buckets.first_bytes, options.buckets.bytes);
  }
  options.make_optimizer = [&contender, make = workload.optimizer_maker()](const torch::Tensor& parameters, const torch::Tensor& gradients) {
    return std::make_unique<TimedOptimizer>(make(parameters, gradients), contender.optimizer_s);
  };
  contender.model = workload.make();
  contender.strategy = kind.starts_with("reducer") ? make_reducer_rival(world, *contender.model, options, kind == "reducer+optim" ? workload.optimizer : "")
                                                   : make_strategy(kind == "single" ? "alone" : kind, world, *contender.model, options);
  step(contender, workload, world.rank());  // buckets are rebuilt here
  contender.held = held_bytes() - before;
  memory.reset_peak();
  const int64_t live = memory.live_bytes();
  world.reset_traffic();
  step(contender, workload, world.rank());
  contender.sent = world.traffic().bytes_sent;
  contender.peak = contender.held + memory.peak_bytes() - live;
  contender.optimizer_s = contender.data_s = 0;
  contender.steps = 0;
}

// One block of steps; seconds per step, the slowest rank's.
double block(Contender& contender, const Workload& workload, Communicator& world, int64_t steps) {
  world.barrier();
  const WallTimer timer;
  if (contender.name != "single" || world.rank() == 0)
    for (int64_t i = 0; i < steps; ++i) step(contender, workload, world.rank());
  auto seconds = torch::tensor({timer.seconds() / static_cast<double>(steps)}, torch::kDouble);
  world.all_reduce(seconds, ReduceOp::max);
  return seconds.item<double>();
}

// Median over rounds of a/b.
double ratio(const Contender& a, const Contender& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.rounds.size(); ++i) ratios.push_back(a.rounds[i] / b.rounds[i]);
  return median(ratios);
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("03_data_parallel/bench_scaling", "strong and weak scaling of every strategy, beside c10d::Reducer");
    Workload workload(options);
    workload.kind = "";
    std::vector<std::string> models{"mlp", "resnet18"}, names{"single", "alone", "naive", "bucketed", "ddp", "zero1", "zero2", "zero3", "reducer", "reducer+optim"};
    std::string scaling = "weak";
    int64_t rounds = 9;
    options.app().add_option("--models", models, "which to train")->delimiter(',');
    options.app().add_option("--strategies", names, "which to compare; NAME@MB sets the bucket size")->delimiter(',');
    options.app().add_option("--scaling", scaling, "weak: --batch per rank; strong: --batch in all")->check(CLI::IsMember({"weak", "strong"}));
    options.app().add_option("--rounds", rounds, "interleaved rounds")->check(CLI::PositiveNumber);
    process.start(options);
    Communicator& world = process.world();
    CountingAllocator::install();
    if (options.quick) rounds = 2;
    if (scaling == "strong") {
      if (workload.batch_size() % world.size()) throw usage_error("--scaling strong", fmt::format("{} samples cannot be shared by {} ranks", workload.batch_size(), world.size()));
      options.batch = workload.batch_size() / world.size();
    }

    for (const std::string& kind : models) {
      workload.kind = kind;
      // 1. Build, and count memory and bytes.
      std::vector<std::unique_ptr<Contender>> contenders;
      for (const std::string& name : names) {
        contenders.push_back(std::make_unique<Contender>());
        contenders.back()->name = name;
        build(*contenders.back(), workload, world);
      }
      // 2. Verify: what exchanges gradients must agree after the same steps, bit by bit if it is ours.
      const auto by_name = [&](const std::string& prefix) -> Contender* {
        for (auto& contender : contenders)
          if (contender->name.starts_with(prefix)) return contender.get();
        return nullptr;
      };
      if (const Contender* base = by_name("ddp")) {
        const auto expected = base->strategy->gather_parameters();
        for (auto& contender : contenders) {
          if (contender->name == "single" || contender->name == "alone") continue;
          const auto got = contender->strategy->gather_parameters();
          for (size_t i = 0; i < got.size(); ++i) {
            const bool rival = contender->name.starts_with("reducer");
            if (rival ? !torch::allclose(got[i], expected[i], 1e-2, 1e-4) : !torch::equal(got[i], expected[i]))
              throw verify_error("bench_scaling", fmt::format("{}: parameter {} of {} differs from ddp's after 2 steps", kind, i, contender->name));
          }
        }
      }
      // 3. Time, by turns: blocks of at least 0.1 s.
      auto seconds = torch::tensor({block(*contenders.front(), workload, world, 1)}, torch::kDouble);
      world.broadcast(seconds, 0);
      const int64_t steps = options.steps ? options.steps : options.quick ? 1 : std::clamp<int64_t>(static_cast<int64_t>(0.1 / seconds.item<double>()), 1, 100);
      for (auto& contender : contenders) contender->optimizer_s = contender->data_s = 0, contender->steps = 0;
      for (int64_t round = 0; round < rounds; ++round)
        for (size_t i = 0; i < contenders.size(); ++i) {  // another one begins each round
          Contender& contender = *contenders[(i + static_cast<size_t>(round)) % contenders.size()];
          contender.rounds.push_back(block(contender, workload, world, steps));
        }
      // 4. Report.
      const Contender *alone = by_name("alone"), *single = by_name("single"), *ddp = by_name("ddp");
      Table table({"strategy", "step", "speed-up", "of alone", "ddp is", "exposed", "optimiser", "sent", "held", "peak"});
      for (const auto& contender : contenders) {
        const double step_s = median(contender->rounds), steps_done = static_cast<double>(std::max<int64_t>(1, contender->steps));
        std::vector<double> exposed;
        for (size_t i = 0; alone && i < contender->rounds.size(); ++i) exposed.push_back(contender->rounds[i] - alone->rounds[i]);
        const bool one = contender->name == "single";
        const double ranks = one ? 1 : world.size();
        table.add({contender->name, format_seconds(step_s), single ? fmt::format("{:.2f}x", ranks * ratio(*single, *contender)) : "-",
                   alone && !one ? fmt::format("{:.2f}", ratio(*alone, *contender)) : "-", ddp && !one ? fmt::format("{:.2f}x", ratio(*contender, *ddp)) : "-",
                   alone && !one ? format_seconds(std::max(0.0, median(exposed))) : "-", format_seconds(contender->optimizer_s / steps_done),
                   format_bytes(contender->sent), format_bytes(contender->held), format_bytes(contender->peak)});
        Row row;
        fill(row, world);
        fill(row, Timing{step_s, quantile(contender->rounds, 0.95), contender->rounds});
        row.set("variant", contender->name).set("workload", kind).set("kind", "measured").set("scaling", scaling).set("dtype", "float32");
        row.set("batch", workload.batch_size()).set("global_batch", workload.batch_size() * static_cast<int64_t>(ranks));
        row.set("rate", static_cast<double>(workload.batch_size()) * ranks / step_s).set("rate_unit", "samples/s");
        row.set("sent_bytes", contender->sent).set("peak_bytes", contender->peak).set("data_wait_s", contender->data_s / steps_done).set("optimizer_s", contender->optimizer_s / steps_done);
        if (alone && !one) row.set("compute_s", median(alone->rounds)).set("exposed_comm_s", median(exposed));
        write_row(process, row);
      }
      if (process.is_root())
        fmt::print("{}, {} parameters, batch {} per rank, {} ranks, {} rounds of {} steps, {} ({})\n{}", kind, parameter_count(*contenders.front()->model), workload.batch_size(),
                   world.size(), rounds, steps, world.backend(), world.transport(), table.text(2));
    }
    if (process.is_root()) fmt::print("speed-up: samples per second over one run alone; of alone: over {} independent runs at once; ddp is: how many times as fast as this\n", world.size());
  });
}
