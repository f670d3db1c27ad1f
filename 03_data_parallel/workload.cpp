#include "workload.hpp"

#include "data/dataset.hpp"
#include "measure/provenance.hpp"  // write_row, fill
#include "measure/statistics.hpp"  // median
#include "measure/table.hpp"       // Table, format_bytes
#include "measure/verify.hpp"      // expect_equal_bits
#include "parallel/replicate.hpp"  // trainable_parameters
#include "parallel/strategy.hpp"   // make_optimizer_by_name
#include "train/flat_parameters.hpp"

namespace manyranks {

Samples load_digits(const Dataset& dataset) {
  auto pixels = torch::empty({dataset.size(), 1, 28, 28}, torch::kUInt8);
  auto labels = torch::empty({dataset.size()}, torch::kInt64);
  for (int64_t i = 0; i < dataset.size(); ++i) labels.data_ptr<int64_t>()[i] = dataset.read(i, pixels.data_ptr<uint8_t>() + i * 784);
  return {pixels.to(torch::kFloat) / 255 - 0.5, labels};
}

Workload::Workload(Options& options) : options_(options) {
  options.add("--model", kind, "what to train").one_of(model_kinds());
  options.add("--optimizer", optimizer, "sgd (with momentum) or adam").one_of({"sgd", "adam"});
}

ModelShape Workload::shape() const {
  ModelShape shape = usual_shape(kind);
  if (kind == "resnet18" || kind == "resnet50" || kind == "vgg11") {  // CIFAR's shape: a step takes milliseconds, not seconds
    shape.classes = 10;
    shape.image = options_.quick && kind != "vgg11" ? 8 : 32;
  }
  if (options_.quick && kind == "convnet") shape.width = 8;
  if (options_.quick && kind == "gpt") shape.layers = 2, shape.width = 32, shape.context = 16, shape.vocab = 64;
  return shape;
}

std::shared_ptr<Model> Workload::make() const {
  torch::manual_seed(options_.seed);
  auto model = make_model(kind, shape());
  model->to(device);
  model->train();
  return model;
}

Samples Workload::samples(int64_t step, int rank, int64_t microbatch) const {
  // One generator per (step, rank, microbatch): a sample does not depend on who draws it, nor on what was drawn before.
  const auto key = options_.seed * 1000003ULL + static_cast<uint64_t>(step) * 4099ULL + static_cast<uint64_t>(rank) * 61ULL + static_cast<uint64_t>(microbatch);
  auto random = at::make_generator<at::CPUGeneratorImpl>(key);
  const ModelShape s = shape();
  const int64_t n = batch_size();
  if (kind == "gpt")
    return {torch::randint(0, s.vocab, {n, s.context}, random, torch::kLong).to(device), torch::randint(0, s.vocab, {n, s.context}, random, torch::kLong).to(device)};
  return {torch::randn({n, s.channels, s.image, s.image}, random).to(device), torch::randint(0, s.classes, {n}, random, torch::kLong).to(device)};
}

MakeOptimizer Workload::optimizer_maker() const { return make_optimizer_by_name(optimizer); }

Reference train_serially(const Workload& workload, Communicator& world, int64_t steps, int64_t microbatches) {
  auto model = workload.make();
  FlatParameters flat(*model);
  auto optimizer = workload.optimizer_maker()(flat.parameters(), flat.gradients());
  double loss_sum = 0;
  for (int64_t step = 0; world.rank() == 0 && step < steps; ++step) {
    torch::Tensor sum;
    loss_sum = 0;
    for (int rank = 0; rank < world.size(); ++rank) {
      flat.zero_grad();
      for (int64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
        const auto [x, y] = workload.samples(step, rank, microbatch);
        const auto loss = cross_entropy(model->forward(x), y);
        loss.backward();
        loss_sum += loss.item<double>();
      }
      sum = rank == 0 ? flat.gradients().clone() : sum.add_(flat.gradients());
    }
    flat.gradients().copy_(sum);
    optimizer->step(workload.learning_rate(), 1.0 / static_cast<double>(world.size() * microbatches));
  }
  world.broadcast(flat.parameters(), 0);
  world.broadcast(flat.gradients(), 0);
  Reference reference;
  for (const auto& [name, tensor] : trainable_parameters(*model)) {
    reference.parameters.push_back(tensor.detach());
    reference.gradients.push_back(tensor.grad());
  }
  reference.loss = loss_sum / static_cast<double>(world.size() * microbatches);
  return reference;
}

bool sums_in_rank_order(const Communicator& world) { return world.size() <= 2 || world.transport() == "shared memory"; }

std::string expect_same(bool bits, const std::string& name, const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected, double tolerance) {
  if (bits) {
    expect_equal_bits(name, got, expected);
    return "equal the serial run's, bit by bit,";
  }
  std::vector<torch::Tensor> a, b;
  for (const auto& tensor : got) a.push_back(tensor.flatten());
  for (const auto& tensor : expected) b.push_back(tensor.flatten());
  expect_close(name, torch::cat(a), torch::cat(b), tolerance);
  return fmt::format("agree with the serial run's to {:.0e} (norm-relative)", ((torch::cat(a) - torch::cat(b)).norm() / torch::cat(b).norm()).item<double>());
}

void verify_model(Process& process, const Model& model, const Reference& reference, int64_t steps) {
  std::vector<torch::Tensor> parameters, gradients, expected;
  for (const auto& [name, tensor] : trainable_parameters(model)) {
    parameters.push_back(tensor.detach());
    if (tensor.grad().defined()) {
      expected.push_back(reference.gradients[parameters.size() - 1] + 0.0F);
      gradients.push_back(tensor.grad() + 0.0F);
    }
  }
  // Gradients at the end of two runs that drifted apart differ by more than the parameters themselves.
  const bool bits = sums_in_rank_order(process.world());
  if (!gradients.empty()) expect_same(bits, "gradient", gradients, expected, 100 * reordered_tolerance);
  const std::string words = expect_same(bits, "parameter", parameters, reference.parameters);
  if (process.is_root())
    fmt::print("  {} {} after {} steps on {} rank(s)\n", gradients.empty() ? "parameters" : "gradients and parameters", words, steps, process.world_size());
}

Exposed time_exposed(Communicator& world, int64_t pairs, const std::function<void(bool communicate)>& step) {
  StepTimer with(1), without(1);
  for (int64_t i = 0; i < pairs + 1; ++i) {
    for (const bool communicate : {true, false}) {
      world.barrier();
      StepTimer& timer = communicate ? with : without;
      timer.start();
      step(communicate);
      timer.stop();
    }
  }
  Exposed exposed{with.over_ranks(world), without.over_ranks(world)};
  std::vector<double> differences;
  for (size_t i = 0; i < exposed.with.samples.size(); ++i) differences.push_back(exposed.with.samples[i] - exposed.without.samples[i]);
  exposed.seconds = median(differences);
  return exposed;
}

double all_reduce_bytes(int64_t elements, int ranks) { return 2.0 * (ranks - 1) / ranks * 4.0 * static_cast<double>(elements); }

void report_step(Process& process, const Workload& workload, const std::string& variant, const Exposed& exposed, double predicted_bytes, double measured_bytes) {
  const bool compared = exposed.without.median > 0;  // ZeRO-3 has no step without communication
  if (process.is_root() && !compared) fmt::print("  step {}\n", format_seconds(exposed.with.median));
  if (process.is_root() && compared)
    fmt::print("  step {}, without communication {}: exposed {}\n", format_seconds(exposed.with.median), format_seconds(exposed.without.median),
               format_seconds(std::max(0.0, exposed.seconds)));
  Row row;
  fill(row, process.world());
  fill(row, exposed.with);
  row.set("variant", variant).set("workload", workload.kind).set("kind", "measured").set("dtype", "float32");
  row.set("batch", workload.batch_size()).set("global_batch", workload.batch_size() * process.world_size());
  row.set("rate", static_cast<double>(workload.batch_size() * process.world_size()) / exposed.with.median).set("rate_unit", "samples/s");
  row.set("sent_bytes", measured_bytes);
  if (compared) row.set("compute_s", exposed.without.median).set("exposed_comm_s", exposed.seconds);
  row.set("predicted", predicted_bytes).set("measured", measured_bytes).set("unit", "bytes/step");
  write_row(process, row);
  write_samples(process, variant, exposed.with.samples);
}

}  // namespace manyranks
