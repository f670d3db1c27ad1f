// Mixed precision on many ranks: half weights and half gradients on the wire, float32 where it counts, and one decision for all.
//
// You learn   the real thing: half weights everywhere, float32 master weights and Adam's state whole (--strategy ddp, 16 bytes per
//             parameter) or in shards (zero1, 4 + 12/N); gradients that travel as 2 bytes and are added in float32; a norm that is taken
//             of the unscaled gradient before clipping; an infinity that one rank alone can see, and all ranks must act on.
// Run it      mpirun -np 2 build/05_mixed_precision/06_amp_data_parallel
//             mpirun -np 4 build/05_mixed_precision/06_amp_data_parallel --strategy ddp --precision bf16
// You see     the same bits as one process, a skipped step that all ranks skip, and what is held and sent (2 ranks):
//               master weights and Adam  693.1 KiB  693.1 KiB  +0.00%     (ddp: 1.4 MiB)
//               sent per step            231.0 KiB  231.0 KiB  +0.00%     (float32: 462.0 KiB)
// Read next   parallel/scaled_step.hpp, which does this around every strategy of chapter 03; chapter 06
#include "workload.hpp"  // load_images, batch_of

#include <cmath>

#include "comm/communicator.hpp"      // Communicator
#include "comm/reduce.hpp"            // reduce: how the library adds half precision
#include "measure/allocator.hpp"      // CountingAllocator, MemoryTag
#include "measure/comparison.hpp"     // Comparison
#include "measure/provenance.hpp"     // write_row, fill
#include "measure/table.hpp"          // format_seconds
#include "measure/timer.hpp"          // StepTimer
#include "measure/verify.hpp"         // expect_equal_bits
#include "parallel/replicate.hpp"     // check_finite, replicate
#include "train/flat_parameters.hpp"  // FlatParameters
#include "train/grad_scaler.hpp"      // GradScaler
#include "train/guarded.hpp"          // squared_norm, guarded_adam

using namespace manyranks;

namespace {

struct Settings {
  std::string strategy = "zero1", precision = "fp16";
  double max_norm = 0.1, rate = 1e-3;  // a norm that the gradients here exceed, so that clipping is seen
  int64_t overflow_at = 3, batch = 32;  // the step in which the last rank's gradient gets an infinity
  bool sharded() const { return strategy == "zero1"; }
  torch::Dtype dtype() const { return precision == "fp16" ? torch::kHalf : torch::kBFloat16; }
};

// N contributions in half precision, added as a half-precision all-reduce adds them (rounded after each), and in float32, rounded once.
void print_rounding(const Settings& settings, int ranks) {
  const int64_t count = 20000;
  torch::manual_seed(7);
  const auto parts = torch::randn({ranks, count}).to(settings.dtype());
  std::vector<const void*> inputs;
  for (int r = 0; r < ranks; ++r) inputs.push_back(parts[r].data_ptr());
  auto chained = torch::empty({count}, parts.options());
  reduce(chained.data_ptr(), inputs.data(), ranks, count, settings.precision == "fp16" ? Dtype::float16 : Dtype::bfloat16, ReduceOp::sum);
  const auto exact = parts.to(torch::kDouble).sum(0), once = parts.to(torch::kFloat).sum(0).to(settings.dtype()).to(torch::kDouble);
  const auto off = [&](const torch::Tensor& sum) { return ((sum.to(torch::kDouble) - exact).norm() / exact.norm()).item<double>(); };
  fmt::print("  sum of {:3d} gradients in {}: off by {:.1e} if rounded after every addition, {:.1e} if added in float32 and rounded once\n", ranks, settings.precision, off(chained), off(once));
}

// One rank's state. As a member of a job it holds its shard; in the serial reference everything, with `world_size` ranks in one.
class Trainer {
 public:
  Trainer(const Settings& settings, const Images& images, torch::Device device, uint64_t seed, int world_size)
      : settings_(settings), scaler_({settings.precision == "fp16" ? 65536.0F : 1.0F}) {
    torch::manual_seed(seed);
    model = make_model("mlp", images.shape("mlp"));
    model->to(device, settings.dtype());
    flat.emplace(*model, world_size, [&](int64_t count, const char* purpose) {
      const MemoryTag tag(std::string_view(purpose) == "parameters" ? Tag::parameters : Tag::gradients);
      return torch::empty({count}, model->parameters().front().options().requires_grad(false));
    });
  }
  // float32, of the range that this process steps.
  void own(int64_t begin, int64_t count) {
    begin_ = begin;
    const MemoryTag tag(Tag::optimizer, "master weights and Adam's state");
    master = flat->parameters().narrow(0, begin, count).to(torch::kFloat);
    mean_ = torch::zeros_like(master), square_ = torch::zeros_like(master);
    const MemoryTag buffers(Tag::buffers, "float32 gradient of the shard");
    gradient = torch::zeros_like(master);
  }

  // This rank's half gradient, of the scaled loss, in flat->gradients().
  double backward(const Samples& samples, bool overflow) {
    flat->zero_grad();
    const auto loss = cross_entropy(model->forward(samples.x.to(settings_.dtype())).to(torch::kFloat), samples.y);
    check_finite(loss);
    (loss * scaler_.scale()).backward();
    if (overflow) flat->gradients().select(0, flat->count() / 2).fill_(INFINITY);
    return loss.item<double>();
  }

  // `norm`: of the scaled mean gradient of the whole model. True if stepped.
  bool step(const torch::Tensor& norm) {
    const kernels::Adam adam = kernels::adam_at_step({.learning_rate = settings_.rate}, steps_done_ + 1);
    guarded_adam({adam, {.inverse_scale = scaler_.inverse(), .max_norm = settings_.max_norm}}, norm, master, gradient, mean_, square_);
    const double squares = norm.item<double>();
    const bool stepped = std::isfinite(squares);
    steps_done_ += stepped;
    clipped_ += stepped && settings_.max_norm > 0 && std::sqrt(squares) * scaler_.inverse() > settings_.max_norm;
    if (settings_.precision == "fp16") scaler_.update(!stepped);
    flat->parameters().narrow(0, begin_, master.numel()).copy_(master);  // rounded to half; the master keeps the rest
    return stepped;
  }

  std::shared_ptr<Model> model;
  std::optional<FlatParameters> flat;
  torch::Tensor master, gradient;
  const GradScaler& scaler() const { return scaler_; }
  int64_t clipped() const { return clipped_; }

 private:
  Settings settings_;
  int64_t begin_ = 0;
  torch::Tensor mean_, square_;
  GradScaler scaler_;
  long steps_done_ = 0;
  int64_t clipped_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("05_mixed_precision/06_amp_data_parallel", "half precision on the wire, float32 in the shards, one decision for all");
    Settings settings;
    options.add("--strategy", settings.strategy, "who holds the float32 state").one_of({"ddp", "zero1"});
    options.add("--precision", settings.precision, "of weights, gradients and messages").one_of({"fp16", "bf16"});
    options.add("--max-norm", settings.max_norm, "clip the gradient to this norm; 0: do not");
    options.add("--overflow-at", settings.overflow_at, "the last rank's gradient gets an infinity in this step; -1: never");
    process.start(options);
    settings.batch = options.batch_or(32);
    Communicator& world = process.world();
    auto& memory = CountingAllocator::get();
    const int n = world.size();
    const int64_t steps = options.steps_or(40, 10), verified = std::min<int64_t>(40, steps);  // against the serial run
    if (process.is_root()) fmt::print("  CPU: {}\n", process.cpu_note());
    const Images images = load_images("digits", options.data, options.seed, 1024, 0, process.device());
    const auto samples = [&](int64_t step, int rank) { return batch_of(images.train, step * n + rank, settings.batch); };

    // 2. Why not simply all-reduce in half precision.
    if (process.is_root())
      for (const int ranks : {2, 8, 64}) print_rounding(settings, ranks);

    // 3. Serial reference: every rank's half gradient in turn, added in float32 in rank order.
    std::vector<bool> skipped_alone;
    Trainer alone(settings, images, process.device(), options.seed, n);
    alone.own(0, alone.flat->parameters().numel());
    for (int64_t step = 0; step < verified; ++step) {
      auto sum = torch::zeros_like(alone.gradient);
      for (int rank = 0; rank < n; ++rank) {
        alone.backward(samples(step, rank), step == settings.overflow_at && rank == n - 1);
        sum.add_(alone.flat->gradients().to(torch::kFloat));
      }
      alone.gradient.copy_(sum.div_(n));
      if (!settings.sharded()) alone.gradient.copy_(alone.gradient.to(settings.dtype()));  // on its way to all ranks it is rounded
      skipped_alone.push_back(!alone.step(squared_norm(alone.gradient)));
    }

    // 4. The distributed run. Parts of one size: rank r sums, and in zero1 steps, the r-th.
    const auto tagged = [&](Tag tag) { return static_cast<double>(memory.live_bytes(tag)); };
    const std::array before{tagged(Tag::parameters), tagged(Tag::gradients), tagged(Tag::optimizer)};
    Trainer mine(settings, images, process.device(), options.seed, n);
    replicate(world, *mine.model);
    const int64_t padded = mine.flat->parameters().numel(), part = padded / n, begin = world.rank() * part;
    settings.sharded() ? mine.own(begin, part) : mine.own(0, padded);
    auto received = torch::empty({n, part}, mine.flat->gradients().options());
    std::vector<bool> skipped;
    double loss = 0;
    StepTimer timer(1);
    const auto step = [&](int64_t number) {
      process.set_step(number);
      timer.start();
      loss = mine.backward(samples(number, world.rank()), number == settings.overflow_at && world.rank() == n - 1);
      // The lesson, one: 2 bytes per gradient on the wire, each received once, added in float32. P(N-1)/N elements sent.
      world.all_to_all(received.view({-1}), mine.flat->gradients());
      auto sum = torch::zeros({part}, mine.gradient.options());
      for (int rank = 0; rank < n; ++rank) sum.add_(received[rank].to(torch::kFloat));
      sum.div_(n);
      torch::Tensor norm;
      if (settings.sharded()) {
        // Two: the shards' squares add up to the model's, and an infinity in one shard is in the sum that everybody gets.
        mine.gradient.copy_(sum);
        norm = squared_norm(mine.gradient);
        world.all_reduce(norm);
      } else {
        world.all_gather(mine.flat->gradients(), sum.to(settings.dtype()));
        mine.gradient.copy_(mine.flat->gradients());
        norm = squared_norm(mine.gradient);  // all ranks have the same bits, and so the same answer
      }
      // Three: unscale, clip, step, in float32; or none of it. Then the half weights of all parts for everybody: P(N-1)/N again.
      skipped.push_back(!mine.step(norm));
      if (settings.sharded()) world.all_gather(mine.flat->parameters(), mine.flat->parameters().narrow(0, begin, part));
      timer.stop();
    };
    for (int64_t i = 0; i < verified; ++i) step(i);

    // 5. Verify: the same half weights and the same masters, bit by bit, for the order of additions is ours on every transport; and the same skips.
    expect_equal_bits("half weights", mine.flat->parameters(), alone.flat->parameters());
    expect_equal_bits("master weights", mine.master, settings.sharded() ? alone.master.narrow(0, begin, part).contiguous() : alone.master);
    if (skipped != skipped_alone) throw verify_error("skipped steps", "not those of the serial run");
    if (settings.overflow_at >= 0 && settings.overflow_at < verified &&
        !skipped[static_cast<size_t>(settings.overflow_at)])
      throw verify_error("overflow", "the step with the infinity was not skipped");
    if (!options.given("--max-norm") && mine.clipped() == 0) throw verify_error("clipping", "no gradient was longer than --max-norm: that unscaling comes before clipping was not seen");
    std::string which;
    for (size_t i = 0; i < skipped.size(); ++i)
      if (skipped[i]) which += fmt::format("{}{}", which.empty() ? "" : ", ", i);
    if (process.is_root())
      fmt::print(
          "  half and master weights equal the serial run's, bit by bit, after {} steps on {} rank(s); clipped: {}; "
          "skipped by all: step {}; scale now {:.0f}\n",
          verified, n, mine.clipped(), which.empty() ? "none" : which, mine.scaler().scale());

    // 6. What is held and sent.
    const double count = static_cast<double>(mine.flat->count()), state = settings.sharded() ? 12.0 / n : 12.0;
    Comparison comparison;
    if (process.device().is_cpu()) {
      comparison.bytes("half weights", 2 * count, tagged(Tag::parameters) - before[0]);
      comparison.bytes("half gradients", 2 * count, tagged(Tag::gradients) - before[1]);
      comparison.bytes("master weights and Adam", state * count, tagged(Tag::optimizer) - before[2]);
    }
    if (options.verify_only) return;
    for (int64_t i = verified; i < steps; ++i) step(i);
    world.reset_traffic();
    step(steps);
    const double sent = static_cast<double>(world.traffic().bytes_sent), predicted = 2.0 * 2.0 * count * (n - 1) / n;
    comparison.bytes("sent per step", predicted, sent);
    if (comparison.worst() > 0.02) throw verify_error("bytes", fmt::format("off the prediction by {:.1f}%\n{}", 100 * comparison.worst(), comparison.text()));
    const Timing timing = timer.over_ranks(world);
    if (process.is_root()) fmt::print("{}  step {}, loss {:.3f}; float32 would send {} and hold 16 bytes per parameter in ddp\n", comparison.text(), format_seconds(timing.median), loss, format_bytes(static_cast<int64_t>(2 * predicted)));
    Row row;
    fill(row, world);
    fill(row, timing);
    row.set("variant", settings.strategy).set("workload", "mlp on " + images.name).set("kind", "measured").set("dtype", settings.precision == "fp16" ? "float16" : "bfloat16").set("batch", settings.batch);
    row.set("global_batch", settings.batch * n).set("rate", static_cast<double>(settings.batch * n) / timing.median).set("rate_unit", "samples/s").set("loss", loss);
    row.set("sent_bytes", sent).set("predicted", predicted).set("measured", sent).set("unit", "bytes/step");
    write_row(process, row);
    write_samples(process, settings.strategy, timing.samples);
  });
}
