// N ranks make the batch N times larger. What must the learning rate do?
//
// You learn   the linear scaling rule (a k times larger batch takes k times fewer steps, so each must be k times longer), why it
//             needs a warm-up (Goyal et al. 2017), and where it ends: past some size no rate recovers the accuracy.
// Run it      mpirun -np 2 build/03_data_parallel/10_large_batch
//             mpirun -np 4 build/03_data_parallel/10_large_batch --epochs 8 --csv results/large_batch.csv
// You see     accuracy on unseen digits after the same number of epochs, by batch and by rule:
//               batch  steps  rate  same rate  scaled  scaled, warm-up
//                  64   1024  0.01      53.5%   53.5%            49.8%
//                 256    256  0.04      26.4%   51.2%            49.1%
//                1024     64  0.16      15.5%   29.1%            27.3%
//                4096     16  0.64      11.2%    9.7%            13.3%
//             In so short a training warm-up costs a little, until the rate is too large without it.
// Read next   11_train.cpp
#include "workload.hpp"  // Samples, load_digits, expect_same

#include "data/digits.hpp"         // Digits
#include "measure/provenance.hpp"  // write_row
#include "measure/table.hpp"       // Table
#include "parallel/replicate.hpp"  // check_same_model
#include "parallel/strategy.hpp"   // make_strategy
#include "train/flat_parameters.hpp"
#include "train/schedule.hpp"      // linear_scaling, with_warmup, constant_rate

using namespace manyranks;

namespace {

double accuracy(Model& model, const Samples& test) {
  const torch::NoGradGuard no_grad;
  return (model.forward(test.x).argmax(1) == test.y).to(torch::kFloat).mean().item<double>();
}

// The order of an epoch, equal on all ranks; batch b of it is [b * batch, (b + 1) * batch), and rank r's part the r-th of N.
torch::Tensor order_of(int64_t epoch, int64_t size, uint64_t seed) {
  return torch::randperm(size, at::make_generator<at::CPUGeneratorImpl>(seed * 1000 + static_cast<uint64_t>(epoch)), torch::kInt64);
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options, launch, data: everybody draws the same digits.
    Options options("03_data_parallel/10_large_batch", "batch size, learning rate and warm-up");
    int64_t epochs = 4, size = 16384;
    double base_rate = 0.01;
    options.add("--epochs", epochs, "passes over the data, the same for every batch").positive();
    options.add("--samples-per-epoch", size, "training samples").positive();
    options.add("--base-rate", base_rate, "learning rate for a batch of 64").positive();
    process.start(options);
    Communicator& world = process.world();
    if (options.quick) epochs = 1, size = 2048;
    std::vector<int64_t> batches{64, 256, 1024, 4096};
    if (options.quick) batches = {64, 1024};
    const Samples train = load_digits(Digits(Split::train, options.seed, size)), test = load_digits(Digits(Split::test, options.seed, options.quick ? 500 : 2000));

    const auto make = [&] {
      torch::manual_seed(options.seed);
      return make_model("mlp", usual_shape("mlp"));
    };
    const auto part = [&](const torch::Tensor& order, int64_t batch, int64_t b, int rank) {
      const int64_t mine = batch / world.size();
      const auto indices = order.narrow(0, b * batch + rank * mine, mine);
      return Samples{train.x.index_select(0, indices), train.y.index_select(0, indices)};
    };
    const auto run = [&](int64_t batch, const Schedule& rate, int64_t most_steps) {
      auto model = make();
      const auto strategy = make_strategy("ddp", world, *model, {make_sgd(0.9)});
      int64_t step = 0;
      for (int64_t epoch = 0; epoch < epochs; ++epoch) {
        const auto order = order_of(epoch, size, options.seed);
        for (int64_t b = 0; (b + 1) * batch <= size && step < most_steps; ++b, ++step) {
          const auto [x, y] = part(order, batch, b, world.rank());
          cross_entropy(strategy->forward(x), y).backward();
          strategy->step(rate(step));
        }
      }
      return std::pair(model, strategy->gather_parameters());
    };
    for (const int64_t batch : batches)
      if (batch % world.size()) throw usage_error("10_large_batch", fmt::format("{} samples cannot be shared by {} ranks", batch, world.size()), "1, 2, 4 or 8 ranks");

    // 2. Verify the training itself: five steps, against one process that sees every rank's part.
    {
      auto model = make();
      FlatParameters flat(*model);
      auto optimizer = make_sgd(0.9)(flat.parameters(), flat.gradients());
      const auto order = order_of(0, size, options.seed);
      for (int64_t step = 0; step < 5; ++step) {
        flat.zero_grad();
        for (int rank = 0; rank < world.size(); ++rank) {
          const auto [x, y] = part(order, 64, step, rank);
          cross_entropy(model->forward(x), y).backward();
        }
        optimizer->step(base_rate, 1.0 / world.size());
      }
      std::vector<torch::Tensor> expected;
      for (const auto& [name, tensor] : trainable_parameters(*model)) expected.push_back(tensor.detach());
      const std::string words = expect_same(sums_in_rank_order(world), "parameter after 5 steps", run(64, constant_rate(base_rate), 5).second, expected);
      if (process.is_root()) fmt::print("  parameters {} after 5 steps on {} rank(s)\n", words, world.size());
    }
    if (options.verify_only) return;

    // 3. Train: the same epochs for every batch, three rules for the rate.
    Table table({"batch", "steps", "rate", "same rate", "scaled", "scaled, warm-up"});
    for (const int64_t batch : batches) {
      const double scaled = linear_scaling(base_rate, batch, 64);
      const int64_t steps = epochs * (size / batch);
      const std::vector<std::pair<std::string, Schedule>> rules{
          {"same rate", constant_rate(base_rate)}, {"scaled", constant_rate(scaled)}, {"scaled, warm-up", with_warmup(constant_rate(scaled), std::max<int64_t>(1, steps / 4))}};
      std::vector<std::string> cells{std::to_string(batch), std::to_string(steps), fmt::format("{:g}", scaled)};
      for (const auto& [name, rate] : rules) {
        const double right = accuracy(*run(batch, rate, steps).first, test);
        cells.push_back(fmt::format("{:.1f}%", 100 * right));
        Row row;
        fill(row, world);
        row.set("variant", name).set("workload", "mlp on digits").set("kind", "measured").set("batch", batch / world.size()).set("global_batch", batch);
        row.set("iterations", steps).set("measured", right).set("unit", "accuracy");
        write_row(process, row);
      }
      table.add(cells);
    }
    // 4. Report.
    if (process.is_root()) fmt::print("{}  {} epochs of {} digits; accuracy on {} that were not trained on\n", table.text(2), epochs, size, test.y.numel());
  });
}
