// Memory, bytes and time of every way to cut a gpt, with predictions beside them; at one width, and with the width growing with the
// ranks so that each holds as many parameters as one rank did (12 C^2 / n stays the same: weak scaling in hidden size).
//
//   mpirun -np 2 build/04_model_parallel/bench_modes --csv results/modes.csv
//   mpirun -np 2 build/04_model_parallel/bench_modes --scaling weak --width 192
//
// single is the dense model on rank 0 while the others sleep. A step is predicted as that of the dense model on all ranks at once (cores that
// share caches and memory are slower together), divided by n, plus its exchanges, each timed by itself in this run: what it leaves out is
// that norms, residuals and dropout are copies (tensor), and that smaller products are less efficient.
// Where ranks share cores it does not hold, and on one rank it says nothing: no prediction of time there.
#include <cmath>

#include "costs.hpp"
#include "workload.hpp"

#include "measure/allocator.hpp"
#include "measure/provenance.hpp"
#include "measure/statistics.hpp"
#include "measure/table.hpp"
#include "measure/timer.hpp"
#include "parallel/mesh.hpp"
#include "parallel/parallel_gpt.hpp"
#include "parallel/replicate.hpp"
#include "parallel/strategy.hpp"
#include "train/flat_parameters.hpp"

using namespace manyranks;

namespace {

struct Mode {
  std::string name;
  Sequence sequence = Sequence::whole;
  bool dense = false;
  std::shared_ptr<Model> model;
  std::unique_ptr<FlatParameters> flat;
  std::unique_ptr<Optimizer> optimizer;
  double parameters = 0, kept = 0, sent = 0, first_loss = 0;
  std::vector<double> rounds;  // seconds per step, maximum over ranks

  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) const {
    return dense ? cross_entropy(model->forward(x), y) : static_cast<ParallelGpt&>(*model).loss(model->forward(x), y);
  }
};

void step(Mode& mode, const TextBatch& batch, double learning_rate) {
  mode.flat->zero_grad();
  mode.loss(batch.tokens, batch.target).backward();
  mode.optimizer->step(learning_rate);
}

void build(Mode& mode, const Workload& workload, Communicator& world) {
  auto& memory = CountingAllocator::get();
  const auto live = [&](Tag tag) { return static_cast<double>(memory.live_bytes(tag)); };
  const double parameters = live(Tag::parameters), activations = live(Tag::activations);
  {
    const MemoryTag tag(Tag::parameters);
    mode.model = mode.dense ? workload.dense() : std::make_shared<ParallelGpt>(workload.shape, TensorSplit{world, mode.sequence}, RandomKeys{.seed = workload.seed()});
    mode.model->to(workload.device);
  }
  mode.parameters = live(Tag::parameters) - parameters;
  mode.flat = std::make_unique<FlatParameters>(*mode.model);
  mode.optimizer = make_adam()(mode.flat->parameters(), mode.flat->gradients());
  const auto [x, y] = workload.batch(0);
  const MemoryTag tag(Tag::activations);
  world.reset_traffic();
  const auto loss = mode.loss(x, y);
  mode.kept = live(Tag::activations) - activations;
  loss.backward();
  mode.sent = static_cast<double>(world.traffic().bytes_sent);
  mode.first_loss = loss.item<double>();
}

// Seconds of one exchange of `count` floats by itself.
double seconds_of(Communicator& world, const std::string& operation, int64_t count, int64_t times) {
  const auto whole = for_exchange(world, torch::ones({count})), part = for_exchange(world, torch::ones({count / world.size()}));
  return time_steps(world, 3, times, [&] {
           if (operation == "all_reduce") world.all_reduce(whole);
           if (operation == "all_gather") world.all_gather(whole, part);
           if (operation == "reduce_scatter") world.reduce_scatter(part, whole);
         }).median;
}

// All exchanges of one step.
double exchanges(Communicator& world, const Mode& mode, int64_t layers, int64_t count, int64_t times) {
  if (mode.dense || world.size() == 1) return 0;
  const double pairs = static_cast<double>(4 * layers + 2);
  if (mode.sequence == Sequence::whole) return pairs * seconds_of(world, "all_reduce", count, times);
  const double gathers = pairs + (mode.sequence == Sequence::regather ? static_cast<double>(2 * layers + 1) : 0.0);
  return gathers * seconds_of(world, "all_gather", count, times) + pairs * seconds_of(world, "reduce_scatter", count, times);
}

double block(Mode& mode, const TextBatch& batch, Communicator& world, int64_t steps, double learning_rate, bool everybody) {
  world.barrier();
  const WallTimer timer;
  if (everybody || world.rank() == 0)
    for (int64_t i = 0; i < steps; ++i) step(mode, batch, learning_rate);
  finish_device_work();
  return largest_over(world, timer.seconds() / static_cast<double>(steps));
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("04_model_parallel/bench_modes", "memory, bytes and time of every way to cut a gpt");
    Workload workload(options);
    std::string scaling = "strong";
    int64_t rounds = 9;
    options.add("--scaling", scaling, "strong: --width; weak: --width times the square root of the ranks").one_of({"strong", "weak"});
    options.add("--rounds", rounds, "interleaved rounds").positive();
    process.start(options);
    workload.prepare(process.device());
    Communicator& world = process.world();
    if (options.quick) rounds = 2;
    ModelShape& shape = workload.shape;
    if (scaling == "weak") shape.width = static_cast<int64_t>(std::lround(static_cast<double>(shape.width) * std::sqrt(world.size()) / static_cast<double>(shape.heads))) * shape.heads;
    check_gpt_split(shape, world.size(), Sequence::split);
    const int64_t tokens = workload.batch_size() * shape.context;

    // 2. Build, count, and verify: every mode's first loss is the dense one's.
    std::vector<Mode> modes(4);
    modes[0].name = "single", modes[0].dense = true;
    modes[1].name = "tensor";
    modes[2].name = "sequence", modes[2].sequence = Sequence::split;
    modes[3].name = "regather", modes[3].sequence = Sequence::regather;
    for (Mode& mode : modes) {
      build(mode, workload, world);
      if (std::abs(mode.first_loss - modes[0].first_loss) > 1e-4) throw verify_error(mode.name, fmt::format("loss {}, dense {}", mode.first_loss, modes[0].first_loss));
    }

    // 3. Time, by turns.
    const TextBatch batch = workload.batch(1);
    const double once = block(modes[0], batch, world, 1, 1e-3, false);  // the largest over ranks: the same on all
    const int64_t steps = options.steps ? options.steps : options.quick ? 1 : std::clamp<int64_t>(static_cast<int64_t>(0.3 / once), 1, 50);
    std::vector<double> at_once;  // the dense model on every rank
    for (int64_t round = 0; round < rounds; ++round) {
      for (Mode& mode : modes) mode.rounds.push_back(block(mode, batch, world, steps, 1e-3, !mode.dense));
      at_once.push_back(block(modes[0], batch, world, steps, 1e-3, true));
    }
    const double single = median(modes[0].rounds), together = median(at_once);

    // 4. Report: four predictions and what came of them.
    Table table({"mode", "parameters", "predicted", "activations", "predicted", "sent", "predicted", "step", "predicted", "single is"});
    for (const Mode& mode : modes) {
      const int n = mode.dense ? 1 : world.size();
      const double layers = static_cast<double>(shape.layers);
      const double parameters = 4 * parameters_per_rank(shape, n);
      const double kept = mode.dense ? kept_by_dense(shape, tokens) : layers * kept_by_block(shape, tokens, n, mode.sequence) + kept_by_ends(shape, tokens, n, mode.sequence);
      const double sent = mode.dense ? 0 : sent_bytes(layers * moved_by_block(shape, tokens, mode.sequence) + moved_by_ends(shape, tokens, mode.sequence), n);
      const double time = median(mode.rounds), compute = (n == 1 ? single : together) / n;
      const double predicted_time = compute + exchanges(world, mode, shape.layers, tokens * shape.width, options.quick ? 3 : 50);
      const auto bytes = [](double value) { return format_bytes(static_cast<int64_t>(value)); };
      table.add({mode.name, bytes(mode.parameters), bytes(parameters), bytes(mode.kept), bytes(kept), bytes(mode.sent), bytes(sent), format_seconds(time), format_seconds(predicted_time), fmt::format("{:.2f}x", time / single)});
      for (const auto& [unit, predicted, measured] : {std::tuple{"parameter bytes", parameters, mode.parameters}, {"activation bytes", kept, mode.kept}, {"bytes/step", sent, mode.sent}, {"s/step", predicted_time, time}}) {
        if (unit == std::string_view("s/step") && (n == 1 || process.oversubscribed())) continue;
        Row row;
        fill(row, world);
        fill(row, Timing{time, quantile(mode.rounds, 0.95), mode.rounds});
        row.set("variant", mode.name).set("workload", fmt::format("gpt C={} L={} T={}", shape.width, shape.layers, shape.context)).set("kind", "measured");
        row.set("dtype", "float32").set("batch", workload.batch_size()).set("global_batch", workload.batch_size()).set("rate", static_cast<double>(tokens) / time).set("rate_unit", "tokens/s");
        row.set("sent_bytes", mode.sent);
        // One rank that works while the others sleep is a reference, no point of a curve; and ranks that share cores do not compute in a share of it.
        if (!mode.dense || world.size() == 1) row.set("scaling", scaling);
        if ((!mode.dense || world.size() == 1) && !process.oversubscribed()) row.set("compute_s", compute).set("exposed_comm_s", std::max(0.0, time - compute));
        row.set("predicted", predicted).set("measured", measured).set("unit", unit);
        write_row(process, row);
      }
    }
    if (process.is_root())
      fmt::print("gpt, width {}, {} layers, {} tokens, {} rank(s), {} scaling, {} rounds of {} steps, {} ({})\n{}", shape.width, shape.layers, tokens, world.size(), scaling, rounds, steps, world.backend(), world.transport(), table.text(2));
  });
}
