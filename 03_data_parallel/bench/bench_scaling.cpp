// Strong and weak scaling of every strategy and its rivals, in one interleaved run: each round times one block of steps of each
// contender in turn, so that all meet the same machine; ratios are taken within a round, and their median is the figure.
//
//   mpirun -np 2 build/03_data_parallel/bench_scaling --models resnet18 --csv results/scaling.csv
//   mpirun -np 2 build/03_data_parallel/bench_scaling --models resnet18 --strategies alone,ddp@1,ddp@5,ddp@25,ddp@100
//   scripts/two_nodes.sh --rate 350mbit build/03_data_parallel/bench_scaling --models resnet18 --batch 128 --strategies alone,comm,naive,ddp
//
// Beside the strategies of common/parallel (NAME@MB sets the bucket size):
//   single         one run while the other ranks sleep: what speed-up is measured against
//   alone          N independent runs at the same time: what a step costs without communication. Exposed communication is
//                  the difference to it, never the wait after backward
//   comm           the all-reduce of the gradients and nothing else: what could be hidden
//   reducer        c10d::Reducer over our communicator, with our fused optimiser; reducer+optim: with torch::optim
//   pytorch        PyTorch DistributedDataParallel over Gloo (TCP), in Python; one host only
#include "python_rival.hpp"
#include "reducer_rival.hpp"
#include "workload.hpp"

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
  std::shared_ptr<Strategy> strategy;    // or one of these two:
  std::unique_ptr<PythonRival> python;
  std::vector<torch::Tensor> buckets;    // comm
  double optimizer_s = 0, data_s = 0;    // sums
  int64_t steps = 0, held = 0, peak = 0, sent = 0;
  std::vector<double> rounds;            // seconds per step, maximum over ranks
  bool exchanges() const { return strategy && name != "single" && name != "alone"; }
};

int64_t held_bytes() {
  const auto& memory = CountingAllocator::get();
  return memory.live_bytes(Tag::parameters) + memory.live_bytes(Tag::gradients) + memory.live_bytes(Tag::optimizer);
}

// Samples were drawn before: fetching one costs nothing here. 11_train has the real loader.
void step(Contender& contender, const Workload& workload, const std::vector<Samples>& samples) {
  const WallTimer timer;
  const auto& [x, y] = samples[static_cast<size_t>(contender.steps) % samples.size()];
  contender.data_s += timer.seconds();
  const MemoryTag tag(Tag::activations);
  cross_entropy(contender.strategy->forward(x), y).backward();
  contender.strategy->step(workload.learning_rate());
  ++contender.steps;
}

void run(Contender& contender, const Workload& workload, const std::vector<Samples>& samples, Communicator& world, int64_t steps) {
  if (contender.python) return contender.python->run(steps);
  if (contender.name == "single" && world.rank() != 0) return;
  for (int64_t i = 0; i < steps; ++i) {
    if (contender.strategy) step(contender, workload, samples);
    for (const auto& bucket : contender.buckets) world.all_reduce(bucket);
  }
}

StrategyOptions options_of(Contender& contender, const Workload& workload) {
  StrategyOptions options;
  if (const auto at = contender.name.find('@'); at != std::string::npos) {
    options.buckets.bytes = static_cast<int64_t>(std::stod(contender.name.substr(at + 1)) * (1 << 20));
    options.buckets.first_bytes = std::min(options.buckets.first_bytes, options.buckets.bytes);
  }
  options.make_optimizer = [&contender, make = workload.optimizer_maker()](const torch::Tensor& parameters, const torch::Tensor& gradients) {
    return std::make_unique<TimedOptimizer>(make(parameters, gradients), contender.optimizer_s);
  };
  return options;
}

// Makes the contender, and counts the memory and bytes of its second step: buckets are rebuilt in the first.
void build(Contender& contender, const Workload& workload, const std::vector<Samples>& samples, Process& process, const Contender* alone) {
  Communicator& world = process.world();
  auto& memory = CountingAllocator::get();
  const int64_t before = held_bytes();
  const std::string kind = contender.name.substr(0, contender.name.find('@'));
  if (kind == "pytorch") {
    if (process.nodes() > 1 || !workload.device.is_cpu()) throw usage_error("--strategies pytorch", "it trains on the CPU, and its ranks meet at 127.0.0.1", "one host, --device cpu");
    auto port = torch::tensor({process.is_root() ? free_port() : 0}, torch::kInt32).to(workload.device);
    world.broadcast(port, 0);
    contender.python = std::make_unique<PythonRival>(PythonRival::Job{workload.kind, workload.batch_size(), world.rank(), world.size(), port.item<int>(), workload.optimizer, process.options().timeout_s});
    return;
  }
  if (kind == "single" && alone) {  // the same run, without company
    contender.model = alone->model, contender.strategy = alone->strategy, contender.held = alone->held, contender.peak = alone->peak;
    return;
  }
  contender.model = workload.make();
  if (kind == "comm") {
    const int64_t count = parameter_count(*contender.model), bucket = (int64_t{25} << 20) / 4;
    const torch::Tensor gradients = allocate_shared(world, count, Tag::buffers);
    for (int64_t begin = 0; begin < count; begin += bucket) contender.buckets.push_back(gradients.narrow(0, begin, std::min(bucket, count - begin)));
  } else if (kind.starts_with("reducer")) {
    contender.strategy = make_reducer_rival(world, *contender.model, options_of(contender, workload), kind == "reducer+optim" ? workload.optimizer : "");
  } else {
    contender.strategy = make_strategy(kind == "single" ? "alone" : kind, world, *contender.model, options_of(contender, workload));
  }
  run(contender, workload, samples, world, 1);
  contender.held = held_bytes() - before;
  memory.reset_peak();
  const int64_t live = memory.live_bytes();
  world.barrier();
  world.reset_traffic();
  const int64_t sent_before = contender.strategy ? contender.strategy->bytes_sent() : 0;
  run(contender, workload, samples, world, 1);
  contender.sent = contender.strategy ? contender.strategy->bytes_sent() - sent_before : world.traffic().bytes_sent;
  contender.peak = contender.held + memory.peak_bytes() - live;
}

// One block of steps; seconds per step, the slowest rank's.
double block(Contender& contender, const Workload& workload, const std::vector<Samples>& samples, Communicator& world, int64_t steps) {
  world.barrier();
  const WallTimer timer;
  run(contender, workload, samples, world, steps);
  finish_device_work();
  auto seconds = torch::tensor({timer.seconds() / static_cast<double>(steps)}, torch::kDouble).to(workload.device);
  world.all_reduce(seconds, ReduceOp::max);
  return seconds.item<double>();
}

// Over rounds: f(a, b) of the two contenders' times in the same round.
template <class F>
std::vector<double> paired(const Contender* a, const Contender* b, F&& f) {
  std::vector<double> values;
  for (size_t i = 0; a && b && i < a->rounds.size(); ++i) values.push_back(f(a->rounds[i], b->rounds[i]));
  return values;
}

// "1.23 [1.20 1.31]": median, smallest and largest of the paired ratios a/b.
std::string ratio_text(const Contender* a, const Contender* b, double factor = 1) {
  const auto ratios = paired(a, b, [&](double x, double y) { return factor * x / y; });
  return ratios.empty() ? "-" : fmt::format("{:.2f} [{:.2f} {:.2f}]", median(ratios), quantile(ratios, 0), quantile(ratios, 1));
}

// What exchanges gradients must agree after the same steps, bit by bit if it is ours and on one host.
void verify(const std::vector<std::unique_ptr<Contender>>& contenders, const Contender& base, bool one_host) {
  const auto expected = base.strategy->gather_parameters();
  for (const auto& contender : contenders) {
    if (contender->python && contender->python->parameters() != parameter_count(*base.model))
      throw verify_error("bench_scaling", fmt::format("PyTorch's model has {} parameters, ours {}", contender->python->parameters(), parameter_count(*base.model)));
    if (!contender->exchanges()) continue;
    const auto got = contender->strategy->gather_parameters();
    const bool bits = one_host && !contender->name.starts_with("reducer");
    double difference = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      if (bits && !torch::equal(got[i], expected[i])) throw verify_error("bench_scaling", fmt::format("parameter {} of {} differs from ddp's after 2 steps", i, contender->name));
      difference += (got[i] - expected[i]).square().sum().item<double>(), norm += expected[i].square().sum().item<double>();
    }
    // As a whole, not element by element: where a gradient is nearly zero, Adam's first steps turn its last bit into the whole step's sign.
    if (std::sqrt(difference / norm) > 1e-3)
      throw verify_error("bench_scaling", fmt::format("parameters of {} differ from ddp's by {:.1e} of their norm after 2 steps", contender->name, std::sqrt(difference / norm)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("03_data_parallel/bench_scaling", "strong and weak scaling of every strategy, beside c10d::Reducer and PyTorch DDP");
    Workload workload(options);
    std::vector<std::string> models{"mlp", "resnet18"}, names{"alone", "single", "comm", "naive", "bucketed", "ddp", "horovod", "zero1", "zero2", "zero3", "reducer", "reducer+optim"};
    std::string scaling = "weak";
    int64_t rounds = 9;
    options.add("--models", models, "which to train").list();
    options.add("--strategies", names, "which to compare; NAME@MB sets the bucket size").list();
    options.add("--scaling", scaling, "weak: --batch per rank; strong: --batch in all").one_of({"weak", "strong"});
    options.add("--rounds", rounds, "interleaved rounds").positive();
    process.start(options);
    workload.device = process.device();
    Communicator& world = process.world();
    if (options.quick) rounds = 2;
    if (scaling == "strong") {
      if (workload.batch_size() % world.size()) throw usage_error("--scaling strong", fmt::format("{} samples cannot be shared by {} ranks", workload.batch_size(), world.size()));
      options.batch = workload.batch_size() / world.size();
    }

    for (const std::string& kind : models) {
      workload.kind = kind;
      std::vector<Samples> samples;
      for (int64_t i = 0; i < 4; ++i) samples.push_back(workload.samples(i, world.rank()));
      // 1. Build, and count memory and bytes.
      std::vector<std::unique_ptr<Contender>> contenders;
      const auto by_name = [&](const std::string& prefix) -> Contender* {
        for (auto& contender : contenders)
          if (contender->name.starts_with(prefix)) return contender.get();
        return nullptr;
      };
      for (const std::string& name : names) {
        contenders.push_back(std::make_unique<Contender>());
        contenders.back()->name = name;
        build(*contenders.back(), workload, samples, process, by_name("alone"));
      }
      // 2. Verify.
      Contender *alone = by_name("alone"), *single = by_name("single"), *ddp = by_name("ddp"), *comm = by_name("comm");
      if (ddp) verify(contenders, *ddp, process.nodes() == 1);
      // 3. Time, by turns: blocks of at least 0.2 s.
      const double first = block(*(ddp ? ddp : contenders.front().get()), workload, samples, world, 1);
      const int64_t steps = options.steps ? options.steps : options.quick ? 1 : std::clamp<int64_t>(static_cast<int64_t>(0.2 / first), 1, 200);
      for (auto& contender : contenders) contender->optimizer_s = contender->data_s = 0, contender->steps = 0;
      for (int64_t round = 0; round < rounds; ++round)
        for (size_t i = 0; i < contenders.size(); ++i) {  // another one begins each round
          Contender& contender = *contenders[(i + static_cast<size_t>(round)) % contenders.size()];
          contender.rounds.push_back(block(contender, workload, samples, world, steps));
        }
      // 4. Report.
      Table table({"strategy", "step", "speed-up", "of alone", "ddp is", "exposed", "of comm", "optimiser", "sent", "held", "peak"});
      // `alone` and `single` are one model and one optimiser: its sums are over the steps of both.
      const auto steps_of = [&](const Contender* of) { return static_cast<double>(std::max<int64_t>(1, of->steps + (of == alone && single && single->strategy == alone->strategy ? single->steps : 0))); };
      for (const auto& contender : contenders) {
        const double step_s = median(contender->rounds), steps_done = steps_of(contender.get());
        const bool one = contender->name == "single", compared = alone && !one && contender.get() != alone && contender.get() != comm;
        const double ranks = one ? 1 : world.size();
        const bool exposes = compared && world.size() > 1;  // one rank has nobody to talk to: what a strategy costs it is overhead
        const auto exposed = exposes ? paired(contender.get(), alone, std::minus<>()) : std::vector<double>();
        std::vector<double> share;
        for (size_t i = 0; comm && i < exposed.size(); ++i) share.push_back(100 * exposed[i] / comm->rounds[i]);
        const auto count = [&](int64_t bytes) { return contender->python ? "-" : format_bytes(bytes); };
        table.add({contender->name, format_seconds(step_s), contender.get() == comm ? "-" : ratio_text(single, contender.get(), ranks), compared ? ratio_text(alone, contender.get()) : "-",
                   contender->exchanges() || contender->python ? ratio_text(contender.get(), ddp) : "-", exposes ? format_seconds(std::max(0.0, median(exposed))) : "-",
                   share.empty() ? "-" : fmt::format("{:.0f}% [{:.0f} {:.0f}]", median(share), quantile(share, 0), quantile(share, 1)),
                   contender->optimizer_s > 0 ? format_seconds(contender->optimizer_s / steps_done) : "-", count(contender->sent), count(contender->held), count(contender->peak)});
        Row row;
        fill(row, world);
        fill(row, Timing{step_s, quantile(contender->rounds, 0.95), contender->rounds});
        // What does not train on all ranks together is a reference, and no point of a scaling curve.
        const bool reference = contender->name == "single" || contender->name == "alone" || contender->name == "comm";
        row.set("variant", contender->name).set("workload", kind).set("kind", "measured").set("scaling", reference ? std::string() : scaling).set("dtype", "float32");
        row.set("batch", workload.batch_size()).set("global_batch", workload.batch_size() * static_cast<int64_t>(ranks));
        row.set("rate", static_cast<double>(workload.batch_size()) * ranks / step_s).set("rate_unit", "samples/s");
        if (contender->python) {
          row.set("backend", "gloo").set("transport", "TCP (PyTorch " + contender->python->version() + ")");
        } else {
          if (!contender->name.starts_with("reducer")) row.set("peak_bytes", contender->peak);  // its buckets and state are not all of our making: not counted
          row.set("sent_bytes", contender->sent).set("data_wait_s", contender->data_s / steps_done).set("optimizer_s", contender->optimizer_s / steps_done);
        }
        // compute: the step without communication, less its optimiser, which has a column of its own.
        if (compared) row.set("compute_s", std::max(0.0, median(alone->rounds) - alone->optimizer_s / steps_of(alone))).set("exposed_comm_s", exposes ? median(exposed) : 0.0);
        write_row(process, row);
        write_samples(process, contender->name, contender->rounds);
      }
      if (process.is_root())
        fmt::print("{}, {} parameters, batch {} per rank, {} ranks, {} rounds of {} steps, {} ({})\n{}", kind, parameter_count(*workload.make()), workload.batch_size(), world.size(), rounds,
                   steps, world.backend(), world.transport(), table.text(2));
      world.barrier();
    }
    if (process.is_root())
      fmt::print("median [least most] of {} paired ratios. speed-up: samples per second over one run alone; of alone: over {} independent runs at once;\n"
                 "ddp is: how many times as fast as this; exposed: step minus the step without communication; of comm: its share of the communication\n", rounds, world.size());
  });
}
