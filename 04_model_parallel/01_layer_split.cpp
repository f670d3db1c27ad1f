// Layer split: a model too large for one device, cut into consecutive layers, one part per rank.
//
// You learn   that cutting between layers is easy and exact: activations go down, gradients come back; and that it is no faster
//             than one device, because every rank waits for its neighbour. It buys memory, not time.
// Run it      mpirun -np 2 build/04_model_parallel/01_layer_split
//             mpirun -np 2 build/04_model_parallel/01_layer_split --memory-cap 50mb     (one rank: exit 69)
//             mpirun -np 4 build/04_model_parallel/01_layer_split --trace split.json    (open it in ui.perfetto.dev)
// You see     the dense bits, the memory of each rank, and who works when:
//               rank 0  FFFFFFF...............................BBBBBBBBBBBBBBBBBBBBBB  computes 50%
//               rank 1  ........FFFFFFFFFFFBBBBBBBBBBBBBBBBBB.......................  computes 49%
// Read next   02_column_row.cpp: all ranks work at once, on parts of each layer; chapter 06: microbatches fill the waiting
#include "workload.hpp"  // Workload, train_dense

#include "measure/allocator.hpp"      // CountingAllocator, MemoryTag
#include "measure/comparison.hpp"     // Comparison
#include "measure/provenance.hpp"     // write_row, fill
#include "measure/table.hpp"          // format_seconds
#include "measure/timer.hpp"          // StepTimer, finish_device_work
#include "measure/trace.hpp"          // Trace, write_trace
#include "measure/verify.hpp"         // expect_equal_bits
#include "models/gpt.hpp"             // make_gpt_unit, initialise_gpt
#include "parallel/replicate.hpp"     // check_finite
#include "parallel/strategy.hpp"      // make_adam
#include "train/flat_parameters.hpp"  // FlatParameters

using namespace manyranks;

namespace {

// Units [begin, end) of the model, and nothing else: the rest is never built on this rank.
class Part : public torch::nn::Module {
 public:
  Part(const ModelShape& shape, int64_t begin, int64_t end, uint64_t seed) {
    for (int64_t u = begin; u < end; ++u) {
      units_.push_back(register_module(std::to_string(u), make_gpt_unit(shape, u)));
      initialise_gpt(*units_.back(), gpt_unit_prefix(shape, u), shape.layers, seed);
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& unit : units_) x = unit->forward(x);
    return x;
  }

 private:
  std::vector<std::shared_ptr<Unit>> units_;
};

// One row per rank: what it did in each of 60 slices of the step, F, B, or nothing.
std::string timeline(Communicator& world, const std::array<double, 4>& mine) {
  auto all = for_exchange(world, torch::empty({world.size(), 4}, torch::kDouble));
  world.all_gather(all, for_exchange(world, torch::tensor(std::vector<double>(mine.begin(), mine.end()), torch::kDouble)));
  all = all.to(torch::kCPU);
  const double start = all.min().item<double>(), length = all.max().item<double>() - start;
  std::string text;
  for (int rank = 0; rank < world.size(); ++rank) {
    const double* t = all[rank].data_ptr<double>();
    std::string row(60, '.');
    for (size_t i = 0; i < row.size(); ++i) {
      const double at = start + (static_cast<double>(i) + 0.5) / 60 * length;
      if (at >= t[0] && at < t[1]) row[i] = 'F';
      if (at >= t[2] && at < t[3]) row[i] = 'B';
    }
    text += fmt::format("  rank {}  {}  computes {:.0f}%\n", rank, row, 100 * (t[1] - t[0] + t[3] - t[2]) / length);
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("04_model_parallel/01_layer_split", "consecutive layers on each rank");
    Workload workload(options);
    process.start(options);
    workload.prepare(process.device());
    Communicator& world = process.world();
    auto& memory = CountingAllocator::get();
    Trace trace(process.rank(), process.host());
    const bool first = world.rank() == 0, last = world.rank() == world.size() - 1;

    // 2. My part of the model trained for some steps: returns the losses, which the last rank knows.
    std::shared_ptr<Part> part;
    std::array<double, 4> times{};  // forward from, to, backward from, to
    StepTimer timer(1);
    const auto now = [&] { return finish_device_work(), trace.now_s(); };
    const auto train = [&](int64_t steps) {
      const int64_t units = gpt_units(workload.shape);
      if (world.size() > units) throw usage_error("layer split", fmt::format("{} units cannot be shared by {} ranks", units, world.size()), fmt::format("1 to {} ranks, or more --layers", units));
      const int64_t begin = units * world.rank() / world.size(), end = units * (world.rank() + 1) / world.size();
      std::unique_ptr<FlatParameters> flat;
      {
        const MemoryTag tag(Tag::parameters, "layers of this rank");
        part = std::make_shared<Part>(workload.shape, begin, end, workload.seed());
        part->to(workload.device);
        flat = std::make_unique<FlatParameters>(*part, 1, [&](int64_t count, const char* purpose) {
          const MemoryTag buffer(std::string_view(purpose) == "gradients" ? Tag::gradients : Tag::parameters, purpose);
          return torch::zeros({count}, workload.device);
        });
      }
      const MemoryTag state(Tag::optimizer, "Adam");
      const auto optimizer = make_adam()(flat->parameters(), flat->gradients());
      std::vector<double> losses;
      for (int64_t step = 0; step < steps; ++step) {
        process.set_step(step);
        const MemoryTag tag(Tag::activations, "activations");
        world.barrier();
        timer.start();
        const auto [tokens, target] = workload.batch(step);
        flat->zero_grad();

        // The lesson: (N, T, C) comes from the rank before, and goes to the one behind.
        auto x = first ? tokens : torch::empty({workload.batch_size(), workload.shape.context, workload.shape.width}, workload.device);
        if (!first) world.recv(x, world.rank() - 1), x.requires_grad_();
        times[0] = now();
        auto y = part->forward(x);
        if (last) y = cross_entropy(y, target);
        times[1] = now();
        auto gradient = torch::ones_like(y);  // of the loss by itself: 1
        if (!last) world.send(y.detach(), world.rank() + 1);
        if (!last) world.recv(gradient, world.rank() + 1);
        times[2] = now();
        y.backward(gradient);
        times[3] = now();
        if (!first) world.send(x.grad(), world.rank() - 1);

        optimizer->step(workload.learning_rate());
        timer.stop();
        if (last) check_finite(y);
        trace.complete("compute", "forward", times[0], times[1]);
        trace.complete("compute", "backward", times[2], times[3]);
        if (last) losses.push_back(y.item<double>());
      }
      // What this rank holds at the end of a step, while it still has it.
      const double p = static_cast<double>(parameter_count(*part));
      Comparison comparison;
      if (!workload.counts_memory()) return std::pair(losses, comparison);
      comparison.bytes("parameters", 4 * p, static_cast<double>(memory.live_bytes(Tag::parameters)));
      comparison.bytes("gradients", 4 * p, static_cast<double>(memory.live_bytes(Tag::gradients)));
      comparison.bytes("optimiser state", 8 * p, static_cast<double>(memory.live_bytes(Tag::optimizer)));
      return std::pair(losses, comparison);
    };

    // 3. Verify: the same bits as the dense model. With a cap the dense model may not fit, that is the point: a small one then.
    const ModelShape asked = workload.shape;
    if (options.memory_cap) workload.use_small_shape();
    const Curve dense = train_dense(workload, world, workload.steps());
    const auto [losses, unused] = train(workload.steps());
    if (last)
      for (size_t step = 0; step < losses.size(); ++step)
        if (losses[step] != dense.losses[step]) throw verify_error("loss", fmt::format("step {}: {}, dense {}", step, losses[step], dense.losses[step]));
    const int64_t unit = gpt_units(workload.shape) * world.rank() / world.size(), before = first ? 0 : 2 + 12 * (unit - 1);  // tensors in front of mine
    for (size_t i = 0; i < part->parameters().size(); ++i) expect_equal_bits("parameter", part->parameters()[i].detach(), dense.parameters[static_cast<size_t>(before) + i]);
    if (process.is_root()) fmt::print("  losses and parameters equal the dense run's, bit by bit, after {} steps on {} rank(s)\n", workload.steps(), world.size());
    part.reset();
    if (options.verify_only) return;

    // 4. The model that was asked for: memory, bytes and time.
    workload.shape = asked;
    world.reset_traffic();
    timer = StepTimer(1);
    const int64_t steps = workload.timed_steps() + 1;
    const auto [unused_losses, comparison_of_memory] = train(steps);
    Comparison comparison = comparison_of_memory;
    const double activation = static_cast<double>(workload.batch_size() * asked.context * asked.width * 4);
    const double sent = static_cast<double>(world.traffic().bytes_sent) / static_cast<double>(steps), predicted = activation * (!first + !last);
    comparison.bytes("bytes sent per step", predicted, sent);
    const std::string chart = timeline(world, times);
    const Timing timing = timer.over_ranks(world);
    if (process.is_root()) fmt::print("rank 0 of {}, width {}, {} layers:\n{}{}  step {}\n", world.size(), asked.width, asked.layers, comparison.text(), chart, format_seconds(timing.median));

    // 5. Report.
    const auto traces = process.rendezvous().all_gather(trace.to_json_events());
    if (process.is_root() && !options.trace.empty()) write_trace(options.trace, traces);
    Row row;
    fill(row, world);
    fill(row, timing);
    row.set("variant", "layer_split").set("workload", "gpt").set("kind", "measured").set("dtype", "float32").set("batch", workload.batch_size());
    row.set("sent_bytes", sent).set("predicted", predicted).set("measured", sent).set("unit", "bytes/step");
    write_row(process, row);
  });
}
