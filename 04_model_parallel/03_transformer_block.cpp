// A whole gpt in tensor-parallel parts: heads, hidden units and the vocabulary are shared out, and nothing is ever gathered.
//
// You learn   that attention is cut by heads, which never talk to each other; that embedding and loss are cut by vocabulary, so that
//             no rank holds the logits (tokens x vocabulary, the largest tensor of all); and what a block costs: four all-reduces
//             of (N, T, C), two in forward and two in backward.
// Run it      mpirun -np 2 build/04_model_parallel/03_transformer_block
//             mpirun -np 4 build/04_model_parallel/03_transformer_block --width 384 --layers 6
// You see     the dense loss curve, and predictions beside counts (--quick):
//               gradients differ from dense by 3.2e-16 (norm-relative, fp64)
//               losses differ from dense by 9.5e-07 at most in 20 steps (fp32, Adam): 5.592 -> 4.126
//               sent per block and step   72.0 KiB   72.0 KiB  +0.00%
//               activations              455.4 KiB  455.4 KiB  +0.00%
// Read next   diff 03_transformer_block.cpp 04_sequence_parallel.cpp
#include "costs.hpp"     // parameters_per_rank, moved_by_block, kept_by_block
#include "workload.hpp"  // Workload, train_dense, expect_same_losses

#include "measure/allocator.hpp"       // CountingAllocator, MemoryTag
#include "measure/comparison.hpp"      // Comparison
#include "measure/provenance.hpp"      // write_row, fill
#include "measure/table.hpp"           // format_seconds
#include "measure/timer.hpp"           // time_steps
#include "parallel/parallel_gpt.hpp"   // ParallelGpt: column_linear, row_linear, vocabulary_embedding, ... in a model
#include "parallel/replicate.hpp"      // check_finite
#include "parallel/strategy.hpp"       // make_adam
#include "train/flat_parameters.hpp"   // FlatParameters

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch. From here on every tensor byte is counted.
    Options options("04_model_parallel/03_transformer_block", "a gpt in tensor-parallel parts");
    Workload workload(options);
    process.start(options);
    workload.prepare(process.device());
    Communicator& world = process.world();
    auto& memory = CountingAllocator::get();
    const ModelShape& shape = workload.shape;
    const int64_t tokens = workload.batch_size() * shape.context;
    const double layers = static_cast<double>(shape.layers);
    const Sequence sequence = Sequence::whole;
    check_gpt_split(shape, world.size(), sequence);

    // 2. Verify gradients in fp64, where a wrong sum cannot hide behind rounding.
    const auto [text, target] = workload.batch(0);
    {
      ParallelGpt model(shape, {world, sequence}, {.seed = workload.seed()});
      model.to(workload.device, torch::kDouble);
      check_seeds(model, world);
      model.loss(model.forward(text), target).backward();
      const auto dense = workload.dense();
      dense->to(torch::kDouble);
      cross_entropy(dense->forward(text), target).backward();
      std::vector<torch::Tensor> got, expected;
      for (const auto& item : model.named_parameters()) got.push_back(item.value().grad());
      for (const auto& item : dense->named_parameters()) expected.push_back(part_of(item.key(), item.value().grad(), world.rank(), world.size()));
      const double difference = largest_over(world, relative_difference(got, expected));
      if (!(difference <= 1e-10)) throw verify_error("gradients", fmt::format("differ from dense by {:.1e} (norm-relative, fp64)", difference));
      if (process.is_root()) fmt::print("  gradients differ from dense by {:.1e} (norm-relative, fp64)\n", difference);
    }

    // 3. The same steps as the dense run: every rank sees the same tokens, and keeps and updates its own parts.
    const Curve dense = train_dense(workload, world, workload.steps());
    std::unique_ptr<ParallelGpt> model;
    {
      const MemoryTag tag(Tag::parameters, "model");
      model = std::make_unique<ParallelGpt>(shape, TensorSplit{world, sequence}, RandomKeys{.seed = workload.seed()});
      model->to(workload.device);
    }
    const double parameter_bytes = static_cast<double>(memory.live_bytes(Tag::parameters));
    FlatParameters flat(*model);
    const auto optimizer = make_adam()(flat.parameters(), flat.gradients());
    std::vector<double> losses;
    const auto step = [&](int64_t number) {
      process.set_step(number);
      const auto [x, y] = workload.batch(number);
      flat.zero_grad();
      const auto loss = model->loss(model->forward(x), y);
      check_finite(loss);
      loss.backward();
      optimizer->step(workload.learning_rate());  // no exchange of gradients: each parameter has its owner, or the same gradient everywhere
      losses.push_back(loss.item<double>());
    };
    for (int64_t i = 0; i < workload.steps(); ++i) step(i);
    const double difference = expect_same_losses(losses, dense.losses);
    if (process.is_root()) fmt::print("  losses differ from dense by {:.1e} at most in {} steps (fp32, Adam): {:.3f} -> {:.3f}\n", difference, workload.steps(), losses.front(), losses.back());

    // 4. Count: one block by itself, then all.
    Comparison comparison;
    {
      const auto x = torch::randn({workload.batch_size(), shape.context, shape.width}, workload.device).requires_grad_();
      world.reset_traffic();
      model->units()[1]->forward(x).sum().backward();
      comparison.bytes("sent per block and step", sent_bytes(moved_by_block(shape, tokens, sequence), world.size()), static_cast<double>(world.traffic().bytes_sent));
      comparison.count("all-reduces per block", world.size() > 1 ? 4 : 0, static_cast<double>(world.traffic().calls));
    }
    const int64_t before = memory.live_bytes(Tag::activations);
    double kept = 0, sent = 0;
    {
      const MemoryTag tag(Tag::activations, "activations");
      world.reset_traffic();
      const auto loss = model->loss(model->forward(text), target);
      kept = static_cast<double>(memory.live_bytes(Tag::activations) - before);
      loss.backward();
      sent = static_cast<double>(world.traffic().bytes_sent);
    }
    const double predicted = sent_bytes(layers * moved_by_block(shape, tokens, sequence) + moved_by_ends(shape, tokens, sequence), world.size());
    comparison.bytes("sent per step", predicted, sent);
    if (workload.counts_memory()) {
      comparison.bytes("parameters", 4 * parameters_per_rank(shape, world.size()), parameter_bytes);
      comparison.bytes("activations", layers * kept_by_block(shape, tokens, world.size(), sequence) + kept_by_ends(shape, tokens, world.size(), sequence), kept);
    }
    if (process.is_root()) fmt::print("{}", comparison.text());
    if (process.is_root())
      fmt::print("  dense: parameters {}, activations {}\n", format_bytes(static_cast<int64_t>(4 * parameters_per_rank(shape, 1))), format_bytes(static_cast<int64_t>(kept_by_dense(shape, tokens))));
    if (options.verify_only) return;

    // 5. Time.
    int64_t number = workload.steps();
    const Timing timing = time_steps(world, 1, workload.timed_steps(), [&] { step(number++); });
    if (process.is_root()) fmt::print("  step {}\n", format_seconds(timing.median));
    Row row;
    fill(row, world);
    fill(row, timing);
    row.set("variant", "tensor").set("workload", "gpt").set("kind", "measured").set("dtype", "float32").set("batch", workload.batch_size()).set("global_batch", workload.batch_size());
    row.set("rate", static_cast<double>(tokens) / timing.median).set("rate_unit", "tokens/s").set("sent_bytes", sent).set("peak_bytes", kept).set("loss", losses.back());
    row.set("predicted", predicted).set("measured", sent).set("unit", "bytes/step");
    write_row(process, row);
  });
}
