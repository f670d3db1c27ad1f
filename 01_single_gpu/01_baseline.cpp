// The honest slow loop: read, decode, forward, backward, step, one thing after another.
//
// You learn   what a training step consists of, and what a plain loop makes of a machine: while it decodes nothing computes,
//             and while it computes nothing decodes. Nothing in it is silly; this is what first versions look like.
// Run it      build/01_single_gpu/01_baseline
//             build/01_single_gpu/01_baseline --data ~/imagenet --model resnet50 --image 224 --batch 64
//             build/01_single_gpu/01_baseline --tensorboard runs/baseline --monitor monitor.csv
// You see     that a second run gives the same bits, without which no later lesson could say "still right, only faster"; then
//             samples/s, how much of the time went by waiting for data, and how much of the machine was busy.
// Read next   02_profile.cpp; and, once one device is fast, diff 01_single_gpu/01_baseline.cpp 03_data_parallel/01_naive.cpp
#include "workload.hpp"  // Workload, Batches, train_plainly, expect_same_training, by_turns, report

#include <torch/optim/adam.h>

#include "parallel/replicate.hpp"  // check_finite

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("01_single_gpu/01_baseline", "one thing after another: the loop that the other lessons make fast");
    Workload workload(options);
    process.start(options);
    workload.open(process);

    // 2. Reference: the same loop, run before.
    const Reference reference = train_plainly(workload, workload.steps());

    // 3. Data, model, optimiser. next() decodes its samples when it is called; the optimiser visits one parameter after another.
    Batches batches = workload.batches();
    auto model = workload.make();
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(workload.learning_rate()));

    const auto step = [&](int64_t number) {
      process.set_step(number);
      const auto [images, labels] = batches.next();
      const auto x = images.to(workload.device()), y = labels.to(workload.device());
      optimizer.zero_grad();
      const auto loss = cross_entropy(model->forward(x), y);
      check_finite(loss);
      loss.backward();
      optimizer.step();
      return loss.item<double>();
    };

    // 4. Run, then verify: the loss of every step and all weights, bit by bit.
    Training training;
    for (int64_t i = 0; i < workload.steps(); ++i) training.add(step(i), *model);
    expect_same_training("the second run", training, *model, reference, {});
    fmt::print("  {} steps, the same bits as the run before; loss {:.3f} -> {:.3f}\n", workload.steps(), training.losses.front(), training.losses.back());
    if (options.verify_only) return;

    // 5. Time, and report.
    int64_t number = workload.steps();
    const std::vector<Variant> variants{{"baseline", &batches, workload.batch(), [&] {
                                           const double loss = step(number);
                                           workload.log("loss", loss, number++);
                                         }}};
    const auto speeds = by_turns(process, variants, workload.blocks(), workload.samples_per_block());
    workload.log("samples per second", speeds.front().samples_per_s, number);
    report(process, workload, variants, speeds);
    workload.close();
  });
}
