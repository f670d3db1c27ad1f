// One training step, one thread: our side of rival_step.py, and a benchmark of its own.
//
//   build/01_single_gpu/bench_step --model resnet18
//   python3 01_single_gpu/bench/rival_step.py          starts it with --exchange, and PyTorch beside it
//
// With --exchange FILE it writes the initial weights and all batches there (safetensors), prints "ready", and then runs as many steps
// as each line on standard input asks for, answering with their losses and seconds in JSON.
#include "launch/torch.hpp"

#include <iostream>
#include <nlohmann/json.hpp>

#include "comm/communicator.hpp"  // Communicator
#include "data/open.hpp"          // open_dataset
#include "data/torch_loader.hpp"  // TorchLoader
#include "launch/process.hpp"
#include "measure/provenance.hpp"  // write_row
#include "measure/statistics.hpp"  // median
#include "measure/table.hpp"       // format_seconds
#include "models/model.hpp"
#include "parallel/replicate.hpp"  // as_row
#include "train/checkpoint.hpp"    // save_tensors, named_state
#include "train/flat_parameters.hpp"
#include "train/fused.hpp"         // fused_sgd
#include "train/optimizer.hpp"     // Sgd

using namespace manyranks;

namespace {

constexpr double momentum = 0.9;

// Fresh gradients in every backward pass, which autograd hands over without a copy, and one fused pass per tensor. A flat buffer
// must be cleared and added to instead: on one device nobody needs it.
class FusedPerTensor {
 public:
  FusedPerTensor(Model& model, double learning_rate) : learning_rate_(learning_rate) {
    for (const auto& parameter : model.parameters()) slots_.push_back({parameter, torch::zeros_like(parameter)});
  }
  void zero_grad() {
    for (auto& slot : slots_) slot.parameter.mutable_grad().reset();
  }
  void step() {
    const kernels::Sgd sgd{static_cast<float>(learning_rate_), static_cast<float>(momentum), 0.0F, 1.0F};
    for (auto& slot : slots_) {
      const auto gradient = slot.parameter.grad().strides() == slot.parameter.strides() ? slot.parameter.grad() : torch::empty_like(slot.parameter).copy_(slot.parameter.grad());
      fused_sgd(sgd, as_row(slot.parameter.detach()), as_row(gradient), as_row(slot.velocity));
    }
  }

 private:
  struct Slot {
    torch::Tensor parameter, velocity;
  };
  double learning_rate_;
  std::vector<Slot> slots_;
};

struct Data {
  torch::Tensor x, y;  // (batches, batch, C, H, W), (batches, batch)
};

Data load(const std::shared_ptr<const Dataset>& dataset, int64_t batches, int64_t batch, uint64_t seed) {
  LoaderOptions loading;
  loading.batch = batch, loading.mean = {0.5F}, loading.deviation = {0.25F};
  TorchLoader loader(dataset, loading);
  DistributedSampler sampler(dataset->size(), 0, 1, {seed});
  loader.start(sampler);
  std::vector<torch::Tensor> x, y;
  while (static_cast<int64_t>(x.size()) < batches) {
    const auto samples = loader.next();
    x.push_back(samples->images.clone()), y.push_back(samples->labels.clone());
  }
  return {torch::stack(x), torch::stack(y)};
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("01_single_gpu/bench_step", "one training step on one thread");
    std::string kind = "mlp", exchange;
    bool flat_buffers = false;
    double learning_rate = 0.001;
    options.add("--model", kind, "what to train").one_of({"mlp", "resnet18"});
    options.add("--exchange", exchange, "write weights and batches here, then obey standard input");
    options.add("--rate", learning_rate, "learning rate");
    options.add("--flat", flat_buffers, "one flat buffer, cleared in every step, in place of fresh gradients");
    process.start(options);
    const bool small = kind == "mlp";
    const int64_t batches = options.quick ? 3 : 50, batch = options.batch_or(options.quick ? 4 : small ? 64 : 32);

    OpenOptions open;
    open.dir = options.data, open.embedded = small ? "digits" : "shapes", open.seed = options.seed, open.size = batches * batch;
    const std::shared_ptr<const Dataset> dataset = open_dataset(open);
    const Data data = load(dataset, batches, batch, options.seed);
    ModelShape shape = usual_shape(kind);
    shape.classes = dataset->classes(), shape.channels = dataset->shape().channels, shape.image = dataset->shape().height;
    torch::manual_seed(options.seed);
    auto model = make_model(kind, shape);
    model->train();
    if (!exchange.empty()) {
      NamedTensors tensors{{"x", data.x}, {"y", data.y}};
      for (const auto& [name, tensor] : named_state(*model)) tensors.emplace_back("model." + name, tensor);
      save_tensors(exchange, tensors, {{"learning_rate", fmt::format("{}", learning_rate)}, {"momentum", fmt::format("{}", momentum)}});
    }

    std::optional<FlatParameters> flat;
    std::optional<Sgd> in_one_pass;
    std::optional<FusedPerTensor> per_tensor;
    if (flat_buffers) flat.emplace(*model), in_one_pass.emplace(flat->parameters(), flat->gradients(), SgdOptions{momentum, 0.0});
    else per_tensor.emplace(*model, learning_rate);
    int64_t number = 0;
    const auto step = [&] {
      process.set_step(number);
      const auto x = data.x[number % batches], y = data.y[number % batches];
      ++number;
      flat_buffers ? flat->zero_grad() : per_tensor->zero_grad();
      const auto loss = cross_entropy(model->forward(x), y);
      loss.backward();
      flat_buffers ? in_one_pass->step(learning_rate) : per_tensor->step();
      return loss.item<double>();
    };

    std::vector<double> losses, seconds;
    const auto run = [&](int64_t steps) {
      losses.clear(), seconds.clear();
      for (int64_t i = 0; i < steps; ++i) {
        const WallTimer timer;
        losses.push_back(step());
        seconds.push_back(timer.seconds());
      }
    };
    if (!exchange.empty()) {
      std::cout << "ready" << std::endl;
      for (int64_t steps; std::cin >> steps;) {
        run(steps);
        std::cout << nlohmann::json{{"losses", losses}, {"seconds", seconds}}.dump() << std::endl;
      }
      return;
    }
    run(3);
    run(options.steps_or(small ? 500 : 10, 3));
    const Timing timing{median(seconds), quantile(seconds, 0.95), seconds};
    fmt::print("  {}, batch {}: {} per step, loss {:.4f}\n", kind, batch, format_seconds(timing.median), losses.back());
    Row row;
    fill(row, timing);
    row.set("variant", flat_buffers ? "fused, flat buffers" : "fused per tensor").set("workload", kind + " on " + dataset->name()).set("kind", "measured").set("dtype", "float32");
    row.set("batch", batch).set("rate", static_cast<double>(batch) / timing.median).set("rate_unit", "samples/s").set("loss", losses.back());
    write_row(process, row);
  });
}
