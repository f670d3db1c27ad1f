// Sequence parallelism: between the tensor-parallel layers, each rank keeps 1/n of the tokens instead of a copy of all.
//
// You learn   that an all-reduce is a reduce-scatter and an all-gather, and what fits between the two: norms, dropout, residuals on
//             1/n of the sequence, for the same bytes; that the gathered input can be gathered again in backward instead of kept
//             (5/4 of the bytes, less memory still); and what is easily forgotten: gradients of the norms must now be summed.
// Run it      mpirun -np 2 build/04_model_parallel/04_sequence_parallel
//             mpirun -np 4 build/04_model_parallel/04_sequence_parallel --width 384 --context 192
// You see     the dense loss curve three times, also with dropout, and bytes and memory side by side:
//               mode      sent   predicted  activations  predicted   error   of dense
// Read next   05_mesh.cpp: the same model on a grid of ranks
#include "costs.hpp"     // parameters_per_rank, moved_by_block, kept_by_block
#include "workload.hpp"  // Workload, train_dense, expect_same_losses

#include "measure/allocator.hpp"       // CountingAllocator, MemoryTag
#include "measure/provenance.hpp"      // write_row, fill
#include "measure/table.hpp"           // Table, format_seconds
#include "measure/timer.hpp"           // time_steps
#include "parallel/parallel_gpt.hpp"   // ParallelGpt: gather_sequence, scatter_sequence, replicated in a model
#include "parallel/replicate.hpp"      // check_finite
#include "parallel/strategy.hpp"       // make_adam
#include "train/flat_parameters.hpp"   // FlatParameters

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch. From here on every tensor byte is counted.
    Options options("04_model_parallel/04_sequence_parallel", "1/n of the tokens between tensor-parallel layers");
    Workload workload(options);
    process.start(options);
    workload.prepare(process.device());
    Communicator& world = process.world();
    auto& memory = CountingAllocator::get();
    const ModelShape& shape = workload.shape;
    const int64_t tokens = workload.batch_size() * shape.context;
    const double layers = static_cast<double>(shape.layers);
    check_gpt_split(shape, world.size(), Sequence::split);
    const auto [text, target] = workload.batch(0);
    const Curve dense = train_dense(workload, world, workload.steps());
    const auto alone = world.split(world.rank(), 0);

    const auto error = [](double predicted, double measured) { return predicted > 0 ? fmt::format("{:+.2f}%", 100 * (measured - predicted) / predicted) : "-"; };
    Table table({"mode", "sent per step", "predicted", "error", "activations", "predicted", "error", "of dense", "step"});
    for (const auto& [name, sequence] : {std::pair{"tensor", Sequence::whole}, {"sequence", Sequence::split}, {"regather", Sequence::regather}}) {
      // 2. Verify gradients in fp64, with dropout: against the same model on one rank, whose masks are the same numbers.
      {
        ModelShape dropping = shape;
        dropping.dropout = 0.1;
        ParallelGpt model(dropping, {world, sequence}, {.seed = workload.seed()}), reference(dropping, {*alone}, {.seed = workload.seed()});
        std::vector<torch::Tensor> got, expected;
        for (ParallelGpt* each : {&model, &reference}) {
          each->to(workload.device, torch::kDouble);
          each->loss(each->forward(text), target).backward();
        }
        check_seeds(model, world);
        for (const auto& item : model.named_parameters()) got.push_back(item.value().grad());
        for (const auto& item : reference.named_parameters()) expected.push_back(part_of(item.key(), item.value().grad(), world.rank(), world.size()));
        const double difference = largest_over(world, relative_difference(got, expected));
        if (!(difference <= 1e-10)) throw verify_error("gradients", fmt::format("{}: differ from one rank by {:.1e} (norm-relative, fp64, dropout)", name, difference));
        if (process.is_root()) fmt::print("  {}: gradients with dropout differ from one rank's by {:.1e} (norm-relative, fp64)\n", name, difference);
      }

      // 3. The same steps as the dense run. The model splits the sequence behind the embedding, and joins it before the logits.
      ParallelGpt model(shape, {world, sequence}, {.seed = workload.seed()});
      model.to(workload.device);
      FlatParameters flat(model);
      const auto optimizer = make_adam()(flat.parameters(), flat.gradients());
      std::vector<double> losses;
      const auto step = [&](int64_t number) {
        process.set_step(number);
        const auto [x, y] = workload.batch(number);
        flat.zero_grad();
        const auto loss = model.loss(model.forward(x), y);
        check_finite(loss);
        loss.backward();  // norms and biases behind sums: one all-reduce per block, by replicated()
        optimizer->step(workload.learning_rate());
        losses.push_back(loss.item<double>());
      };
      for (int64_t i = 0; i < workload.steps(); ++i) step(i);
      const double difference = expect_same_losses(losses, dense.losses);
      if (process.is_root()) fmt::print("  {}: losses differ from dense by {:.1e} at most in {} steps (fp32, Adam)\n", name, difference, workload.steps());

      // 4. Count bytes sent, and what autograd keeps from forward to backward.
      double kept = 0, sent = 0;
      {
        const MemoryTag tag(Tag::activations, "activations");
        const int64_t before = memory.live_bytes(Tag::activations);
        world.reset_traffic();
        const auto loss = model.loss(model.forward(text), target);
        kept = static_cast<double>(memory.live_bytes(Tag::activations) - before);
        loss.backward();
        sent = static_cast<double>(world.traffic().bytes_sent);
      }
      const double predicted_sent = sent_bytes(layers * moved_by_block(shape, tokens, sequence) + moved_by_ends(shape, tokens, sequence), world.size());
      const double predicted_kept = layers * kept_by_block(shape, tokens, world.size(), sequence) + kept_by_ends(shape, tokens, world.size(), sequence);
      if (workload.counts_memory() && std::abs(kept - predicted_kept) > 0.05 * predicted_kept) throw verify_error("activations", fmt::format("{}: {} kept, {} predicted", name, kept, predicted_kept));

      // 5. Time.
      int64_t number = workload.steps();
      const Timing timing = options.verify_only ? Timing{} : time_steps(world, 1, workload.timed_steps(), [&] { step(number++); });
      table.add({name, format_bytes(static_cast<int64_t>(sent)), format_bytes(static_cast<int64_t>(predicted_sent)), error(predicted_sent, sent), format_bytes(static_cast<int64_t>(kept)),
                 format_bytes(static_cast<int64_t>(predicted_kept)), error(predicted_kept, kept), fmt::format("{:.0f}%", 100 * kept / kept_by_dense(shape, tokens)),
                 options.verify_only ? "-" : format_seconds(timing.median)});
      if (options.verify_only) continue;
      Row row;
      fill(row, world);
      fill(row, timing);
      row.set("variant", name).set("workload", "gpt").set("kind", "measured").set("dtype", "float32").set("batch", workload.batch_size()).set("global_batch", workload.batch_size());
      row.set("rate", static_cast<double>(tokens) / timing.median).set("rate_unit", "tokens/s").set("sent_bytes", sent).set("peak_bytes", kept).set("loss", losses.back());
      row.set("predicted", predicted_kept).set("measured", kept).set("unit", "activation bytes");
      write_row(process, row);
    }
    if (process.is_root()) fmt::print("{}", table.text(2));
  });
}
