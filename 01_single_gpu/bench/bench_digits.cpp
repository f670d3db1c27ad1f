// How hard is `digits`? A linear model, an mlp and a convnet, each with the same budget of time, scored on samples never trained on.
//
//   build/01_single_gpu/bench_digits --model convnet --budget-s 120 --seed 20260101
//   build/01_single_gpu/bench_digits --model convnet --data ~/mnist            the same path for real data
//
// One thread computes, one draws ahead: two cores. The learning rate falls along half a cosine over the budget, so every model
// has finished learning when its time is up.
#include "launch/torch.hpp"

#include <cmath>

#include "data/open.hpp"           // open_dataset
#include "data/torch_loader.hpp"   // TorchLoader
#include "launch/process.hpp"
#include "measure/provenance.hpp"  // write_row
#include "measure/timer.hpp"       // WallTimer
#include "models/model.hpp"
#include "parallel/replicate.hpp"  // check_finite
#include "train/flat_parameters.hpp"
#include "train/optimizer.hpp"     // Adam

using namespace manyranks;

namespace {

double accuracy(Model& model, TorchLoader& loader, DistributedSampler& sampler, torch::Device device) {
  const torch::NoGradGuard no_grad;
  model.eval();
  int64_t right = 0, all = 0;
  sampler.start_epoch(0);
  loader.start(sampler);
  while (const auto batch = loader.next()) {
    right += (model.forward(batch->images.to(device)).argmax(1).cpu() == batch->labels).sum().item<int64_t>();
    all += batch->labels.numel();
  }
  model.train();
  return static_cast<double>(right) / static_cast<double>(all);
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("01_single_gpu/bench_digits", "accuracy within a budget of time");
    std::string kind = "convnet";
    double budget_s = 120, peak_rate = 2e-3;
    int workers = 1;
    options.add("--model", kind, "what to train").one_of({"linear", "mlp", "convnet"});
    options.add("--budget-s", budget_s, "seconds of training").positive();
    options.add("--rate", peak_rate, "Adam's learning rate at its highest");
    options.add("--workers", workers, "threads that prepare batches");
    process.start(options);
    if (options.quick) budget_s = std::min(budget_s, 1.0);

    OpenOptions open;
    open.dir = options.data, open.seed = options.seed, open.size = options.quick ? 500 : 0;
    const std::shared_ptr<const Dataset> train = open_dataset(open);
    open.split = Split::test;
    const std::shared_ptr<const Dataset> test = open_dataset(open);
    fmt::print("  {}\n", train->describe());
    const int64_t batch = options.batch_or(64);
    LoaderOptions loading;
    loading.batch = batch, loading.workers = workers, loading.mean = {0.2F}, loading.deviation = {0.3F};
    TorchLoader train_loader(train, loading), test_loader(test, loading);
    DistributedSampler sampler(train->size(), 0, 1, {options.seed}), test_sampler(test->size(), 0, 1, {options.seed, false});

    ModelShape shape = usual_shape(kind == "convnet" ? "convnet" : "mlp");
    shape.classes = train->classes(), shape.channels = train->shape().channels, shape.image = train->shape().height;
    if (kind == "linear") shape.layers = 0;
    torch::manual_seed(options.seed);
    auto model = make_model(kind == "convnet" ? "convnet" : "mlp", shape);
    model->to(process.device());
    FlatParameters flat(*model);
    Adam optimizer(flat.parameters(), flat.gradients(), {});

    const WallTimer timer;
    int64_t steps = 0, epochs = 0;
    double loss_now = 0;
    while (timer.seconds() < budget_s) {
      sampler.start_epoch(epochs++);
      train_loader.start(sampler);
      while (const auto samples = train_loader.next()) {
        const double part = timer.seconds() / budget_s;
        if (part >= 1) break;
        process.set_step(steps++);
        flat.zero_grad();
        const auto loss = cross_entropy(model->forward(samples->images.to(process.device())), samples->labels.to(process.device()));
        check_finite(loss);
        loss.backward();
        optimizer.step(peak_rate * 0.5 * (1 + std::cos(3.14159265358979 * part)));
        loss_now = loss.item<double>();
      }
    }
    const double seconds = timer.seconds(), score = accuracy(*model, test_loader, test_sampler, process.device());
    fmt::print("  {}: {:.2f}% of {} unseen samples after {:.0f} s, {} steps, {:.1f} passes over {} samples\n", kind, 100 * score, test->size(), seconds, steps,
               static_cast<double>(steps * batch) / static_cast<double>(train->size()), train->size());
    Row row;
    row.set("variant", kind).set("workload", train->name()).set("kind", "measured").set("dtype", "float32").set("batch", batch).set("iterations", steps);
    row.set("rate", static_cast<double>(steps * batch) / seconds).set("rate_unit", "samples/s").set("measured", score).set("unit", "accuracy").set("loss", loss_now);
    write_row(process, row);
  });
}
