// A grid of ranks: tensor parallelism along one axis, data parallelism with ZeRO along the other.
//
// You learn   that the two compose without knowing of each other: tensor ranks share samples and split the model, data ranks share
//             parts of the model and split the samples. Put the tensor axis on neighbours: it talks in every layer.
//                       tp 0    tp 1
//               dp 0    rank 0  rank 1   samples 0..N-1
//               dp 1    rank 2  rank 3   samples N..2N-1
// Run it      mpirun -np 4 build/04_model_parallel/05_mesh --tp 2 --dp 2 --zero 2
//             mpirun -np 2 build/04_model_parallel/05_mesh --tp 2 --sp --steps 500
//             mpirun -np 2 build/04_model_parallel/05_mesh --tp 2 --amp bf16
//             mpirun -np 2 build/04_model_parallel/05_mesh --tp 2 --data README.md
// You see     the dense loss curve on any grid, what each rank holds and sends, and a loss that cannot go below the floor (--quick):
//               dp 2 x tp 2 with sp, zero2: losses differ from dense by 7.2e-07 at most in 20 steps
//               step   20  loss 4.1042   floor 0.2822 nats per byte
// Read next   chapter 06: the third axis, pipeline stages
#include "workload.hpp"  // Workload, train_dense, expect_same_losses

#include "costs.hpp"                  // parameters_per_rank, moved_by_block
#include "measure/allocator.hpp"      // CountingAllocator, MemoryTag
#include "measure/comparison.hpp"     // Comparison
#include "measure/progress.hpp"       // Progress
#include "measure/provenance.hpp"     // write_row, fill
#include "measure/table.hpp"          // format_seconds
#include "measure/timer.hpp"          // StepTimer
#include "parallel/mesh.hpp"          // Mesh
#include "parallel/parallel_gpt.hpp"  // ParallelGpt
#include "parallel/replicate.hpp"     // check_finite
#include "parallel/scaled_step.hpp"   // ScaledStep
#include "parallel/strategy.hpp"      // make_strategy
#include "train/amp.hpp"              // Amp, Autocast
#include "train/text_gpt.hpp"         // strategy_name

using namespace manyranks;

namespace {

constexpr double half_tolerance = 5e-2;  // of the loss in nats, half precision against the dense float32 run

// Bytes per parameter and rank: 4 for the values, 4 for gradients, 8 for Adam, each whole or in shards.
Comparison held(const CountingAllocator& memory, double parameters, int zero, double shards) {
  Comparison comparison;
  const auto part = [&](int stage) { return zero >= stage ? parameters / shards : parameters; };
  comparison.bytes("parameters", 4 * part(3), static_cast<double>(memory.live_bytes(Tag::parameters)));
  comparison.bytes("gradients", 4 * part(2), static_cast<double>(memory.live_bytes(Tag::gradients)));
  comparison.bytes("optimiser state", 8 * part(1), static_cast<double>(memory.live_bytes(Tag::optimizer)));
  return comparison;
}

// Of the elements that the tensor axis moves, those that autocast makes half as large: results of row-parallel layers (T x C, twice per
// block, there as sums and in a split sequence half each way), and with regather the gradients of what was gathered.
double moved_in_half(const ModelShape& s, int64_t tokens, Sequence sequence) {
  const double sc = static_cast<double>(tokens * s.width), layers = static_cast<double>(s.layers);
  return sequence == Sequence::regather ? (3 * layers + 0.5) * sc : 2 * layers * sc;
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("04_model_parallel/05_mesh", "tensor x data parallel on a grid of ranks, with ZeRO");
    Workload workload(options);
    int tp = 0, dp = 0, zero = 0;
    bool sp = false, regather = false;
    Amp amp(options);
    options.add("--tp", tp, "tensor ranks; 0: all that --dp leaves").not_negative();
    options.add("--dp", dp, "data ranks; 0: all that --tp leaves").not_negative();
    options.add("--zero", zero, "ZeRO stage on the data axis; 0: plain data parallelism").between(0, 3);
    options.add("--sp", sp, "sequence parallel along the tensor axis");
    options.add("--regather", regather, "gather the inputs of column-parallel layers again in backward").needs("--sp");
    process.start(options);
    workload.prepare(process.device());
    Communicator& world = process.world();
    auto& memory = CountingAllocator::get();
    if (process.is_root() && amp.on()) fmt::print("  CPU: {}\n", process.cpu_note());

    // 2. The grid. Who has the same tp and another dp holds the same part of the model.
    if (tp == 0) tp = dp > 0 && world.size() % dp == 0 ? world.size() / dp : dp > 0 ? 1 : world.size();
    if (dp == 0) dp = world.size() % tp == 0 ? world.size() / tp : 1;
    const Mesh mesh(world, {{"dp", dp}, {"tp", tp}});
    Communicator &tensor = mesh["tp"], &data = mesh["dp"];
    const Sequence sequence = !sp ? Sequence::whole : regather ? Sequence::regather : Sequence::split;
    check_gpt_split(workload.shape, tp, sequence);
    const std::string kind = zero == 0 ? "ddp" : fmt::format("zero{}", zero);

    // 3. A run: the model's parts, the strategy on the data axis, and a step that knows nothing of either.
    StepTimer timer(1);
    const auto train = [&](int64_t steps, bool show) {
      std::unique_ptr<ParallelGpt> model;
      {
        const MemoryTag tag(Tag::parameters, "model");
        model = std::make_unique<ParallelGpt>(workload.shape, TensorSplit{tensor, sequence}, RandomKeys{.seed = workload.seed(), .first_sample = data.rank() * workload.batch_size()});
      }
      model->to(workload.device);
      check_seeds(*model, tensor);
      ScaledStep scaled(world, amp);  // an infinity in any rank's part of the model is everybody's
      const auto strategy = make_strategy(kind, data, *model, {scaled.wrap(make_adam()), {}});
      std::vector<double> losses;
      Progress progress("training", steps, show && process.is_root());
      for (int64_t step = 0; step < steps; ++step) {
        process.set_step(step);
        if (step == 0) tensor.reset_traffic(), data.reset_traffic();
        timer.start();
        const MemoryTag tag(Tag::activations, "activations");
        model->keys().step = step;
        const auto [tokens, target] = workload.batch(step, data.rank() * workload.batch_size());  // by data rank: tensor ranks share samples
        torch::Tensor logits;
        {
          const Autocast autocast(amp, workload.device.type());
          logits = strategy->forward(tokens);
        }
        const auto loss = model->loss(logits.to(torch::kFloat), target);
        check_finite(loss);
        scaled.scale(loss).backward();
        strategy->step(workload.learning_rate());
        auto mean = loss.detach().clone();
        data.all_reduce(mean);
        losses.push_back(mean.item<double>() / data.size());
        timer.stop();
        progress.update(step + 1, fmt::format("loss {:.3f}", losses.back()));
        if (show && process.is_root() && ((step + 1) % 50 == 0 || step + 1 == steps))
          fmt::print("  step {:4d}  loss {:.4f}{}\n", step + 1, losses.back(), workload.text().floor > 0 ? fmt::format("   floor {:.4f} nats per byte", workload.text().floor) : "");
      }
      const double parameters = parameters_per_rank(workload.shape, tp), times = static_cast<double>(steps);
      const int64_t tokens = workload.batch_size() * workload.shape.context;
      Comparison comparison = workload.counts_memory() ? held(memory, parameters, zero, dp) : Comparison();
      const double halved = amp.on() ? moved_in_half(workload.shape, tokens, sequence) / 2 : 0;
      comparison.bytes("sent per step, tp", sent_bytes(static_cast<double>(workload.shape.layers) * moved_by_block(workload.shape, tokens, sequence) + moved_by_ends(workload.shape, tokens, sequence) - halved, tp),
                       static_cast<double>(tensor.traffic().bytes_sent) / times);
      comparison.bytes("sent per step, dp", sent_bytes((zero == 3 ? 1.5 : 1.0) * parameters, dp), static_cast<double>(data.traffic().bytes_sent) / times);
      if (comparison.worst() > 0.02) throw verify_error("bytes", fmt::format("off the prediction by {:.1f}%\n{}", 100 * comparison.worst(), comparison.text()));
      return std::pair(losses, comparison);
    };

    // 4. Verify: the first steps of the run against the dense model; with a cap, which the dense one may not fit under, a small one.
    const ModelShape asked = workload.shape;
    if (options.memory_cap) workload.use_small_shape();
    const int64_t verified = workload.steps();
    const std::vector<double> dense = train_dense(workload, world, verified, dp).losses;
    const double difference = expect_same_losses(train(verified, false).first, dense, amp.on() ? half_tolerance : 1e-4);
    if (process.is_root()) fmt::print("  {}{}, {}{}: losses differ from dense by {:.1e} at most in {} steps\n", mesh.text(), regather ? " with regather" : sp ? " with sp" : "", kind, amp.on() ? ", " + amp.dtype_name() : "", difference, verified);
    workload.shape = asked;
    if (options.verify_only) return;

    // 5. Train, and report.
    timer = StepTimer(1);
    memory.reset_peak();  // what the dense run held is no part of it
    world.barrier();
    const int64_t steps = options.steps_or(200, 20);
    const auto [losses, comparison] = train(steps, true);
    const Timing timing = timer.over_ranks(world);
    const double sent = largest_over(world, static_cast<double>(tensor.traffic().bytes_sent + data.traffic().bytes_sent) / static_cast<double>(steps));
    const double peak = largest_over(world, static_cast<double>(memory.peak_bytes()));
    const double rate = static_cast<double>(dp * workload.batch_size() * asked.context) / timing.median;
    if (process.is_root()) fmt::print("{}  step {}, {:.0f} tokens/s\n", comparison.text(), format_seconds(timing.median), rate);
    Row row;
    fill(row, world);
    fill(row, timing);
    row.set("variant", strategy_name({{"tp", tp}, {"dp", dp}}, {zero > 0 ? kind : "", regather ? "regather" : sp ? "sp" : ""})).set("workload", fmt::format("gpt C={} L={} T={}", asked.width, asked.layers, asked.context)).set("kind", "measured").set("dtype", amp.dtype_name());
    row.set("batch", workload.batch_size()).set("global_batch", dp * workload.batch_size()).set("rate", rate).set("rate_unit", "tokens/s");
    row.set("sent_bytes", static_cast<int64_t>(sent)).set("peak_bytes", static_cast<int64_t>(peak)).set("loss", losses.back());
    write_row(process, row);
    write_samples(process, "mesh", timing.samples);
  });
}
