// Runs a trainer to the target and checks it (course.hpp); or, with --evaluate, judges weights that another process has trained.
#include "course.hpp"

#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "data/digits.hpp"         // Digits
#include "inspector.hpp"           // Inspector
#include "launch/errors.hpp"       // verify_error
#include "launch/process.hpp"      // Options
#include "models/gpt.hpp"          // initialise_gpt
#include "parallel/replicate.hpp"  // trainable_parameters
#include "train/checkpoint.hpp"    // save_tensors, load_tensors_into
#include "train/text_gpt.hpp"      // text_gpt_shape, text_windows

namespace manyranks::capstone {

Task make_task(const std::string& name, bool quick, uint64_t seed) {
  Task task;
  task.name = name, task.seed = seed;
  if (name == "gpt") {  // the gpt and the global batch of the strategy matrix (scripts/sweeps/matrix.toml)
    task.shape = text_gpt_shape(quick ? 2 : 4, quick);
    task.target = quick ? 4.5 : 1.0;
  } else {
    task.shape = usual_shape("resnet18");
    task.shape.classes = 10, task.shape.channels = 1, task.shape.image = 28;
    task.global_batch = quick ? 4 : 16;
    task.target = quick ? 3.0 : 1.0;
    if (quick) task.smooth = 2, task.most_steps = 20;
  }
  return task;
}

std::shared_ptr<Model> Task::dense() const {
  torch::manual_seed(seed);
  auto made = make_model(model(), shape);
  if (name == "gpt") initialise_gpt(*made, "", shape.layers, seed);
  return made;
}

torch::Tensor Task::loss(Model& model, const Samples& samples) const { return cross_entropy(model.forward(samples.input), samples.target); }

Loader::Loader(Task task, torch::Device device) : task_(std::move(task)), device_(device) {
  if (task_.name == "gpt") text_ = grammar_text(task_.seed, 1 << 20);
}

Samples Loader::make(int64_t step, int64_t first, int64_t count) const {
  if (step < 0 || first < 0 || count < 1 || first + count > task_.global_batch)
    throw usage_error("loader", fmt::format("samples {} to {} of step {}: a step has {}", first, first + count - 1, step, task_.global_batch));
  if (task_.name == "gpt") {
    const auto [tokens, target] = text_windows(text_, task_.seed, step, first, count, task_.shape.context);
    return {tokens, target};
  }
  const Digits digits(Split::train, task_.seed);
  auto pixels = torch::empty({count, 1, 28, 28}, torch::kUInt8);
  auto labels = torch::empty({count}, torch::kLong);
  for (int64_t i = 0; i < count; ++i)
    labels.data_ptr<int64_t>()[i] = digits.read((step * task_.global_batch + first + i) % digits.size(), pixels.data_ptr<uint8_t>() + i * 28 * 28);
  return {pixels.to(torch::kFloat) / 255.0 - 0.5, labels};
}

Samples Loader::batch(int64_t step, int64_t first, int64_t count) {
  const Samples samples = make(step, first, count);
  given_.push_back({step, first, count, hash_of(samples.target, hash_of(samples.input))});
  return {samples.input.to(device_), samples.target.to(device_)};
}

namespace {

void train(Process& process, const Task& task, const std::string& result, const std::string& weights) {
  Communicator& world = process.world();
  Loader loader(task, process.device());
  const Task given = task;  // what the trainer sees is not what decides
  Course course{given, world, loader, process.device()};
  Inspector inspector(process, task, process.options().memory_cap);
  inspector.begins();
  const auto trainer = inspector.timed([&] { return make_trainer(course); });
  std::vector<double> losses;
  const auto mean = [&] {
    const size_t window = std::min<size_t>(losses.size(), static_cast<size_t>(task.smooth));
    return std::accumulate(losses.end() - static_cast<long>(window), losses.end(), 0.0) / static_cast<double>(window);
  };
  for (int64_t step = 0; losses.size() < static_cast<size_t>(task.smooth) || mean() > task.target; ++step) {
    if (step == task.most_steps) throw verify_error("target", fmt::format("{} steps, and the mean loss is {:.3f}, not {:.3f}", step, mean(), task.target));
    process.set_step(step);
    {  // the copies are gone before the step: they do not count for its memory
      const auto whole = inspector.whole_of(*trainer);
      if (step == 0) inspector.expect_given_weights(whole);
      inspector.before(whole);
    }
    const double said = inspector.timed([&] { return trainer->step(step); });
    if (!std::isfinite(said)) throw disagree_error("step", fmt::format("the loss is {}", said), "a smaller learning rate");
    losses.push_back(largest(world, said, process.device()));
    inspector.after(step, losses.back(), loader);
  }
  if (process.is_root()) inspector.expect_true_losses(loader);
  const auto whole = inspector.whole_of(*trainer);
  inspector.expect_given_data(loader, static_cast<int64_t>(losses.size()));
  if (process.is_root() && !weights.empty()) {
    NamedTensors named;
    const auto model = task.dense();
    const auto parameters = trainable_parameters(*model);
    for (size_t i = 0; i < parameters.size(); ++i) named.emplace_back(parameters[i].name, whole.at(i).cpu());
    save_tensors(weights, named);
  }
  inspector.write(result, static_cast<int64_t>(losses.size()), mean());
}

// Held-out data: the same grammar or the same pen, from a seed of the grader's.
void evaluate(const Task& task, const std::string& weights, uint64_t held_out) {
  torch::NoGradGuard no_graph;
  const auto model = task.dense();
  NamedTensors named;
  for (const auto& [name, tensor] : trainable_parameters(*model)) named.emplace_back(name, tensor);
  load_tensors_into(weights, named);
  Task other = task;
  other.seed = held_out, other.global_batch = task.name == "gpt" ? 64 : 256;  // one batch: batch normalisation by its own statistics, as in training
  Loader loader(other, torch::kCPU);
  const Samples samples = loader.batch(0, 0, other.global_batch);
  fmt::print("held-out loss {:.6f}\n", task.loss(*model, samples).item<double>());
}

}  // namespace
}  // namespace manyranks::capstone

int main(int argc, char** argv) {
  using namespace manyranks;
  Process process(argc, argv);
  return process.run([&] {
    Options options("07_challenge/capstone", "train to a target loss under limits, and be checked");
    std::string task = "gpt", result, weights, judged;
    uint64_t held_out = 0;
    double target = 0;
    options.add("--task", task, "gpt or resnet").one_of({"gpt", "resnet"});
    options.add("--target", target, "another target loss");
    options.add("--result", result, "where the figures of the run go (JSON)");
    options.add("--weights", weights, "where the final weights go");
    options.add("--evaluate", judged, "weights to judge; nothing is trained");
    options.add("--held-out", held_out, "seed of the data for --evaluate");
    process.start(options);
    auto chosen = capstone::make_task(task, options.quick, options.seed);
    if (target > 0) chosen.target = target;
    if (!judged.empty()) capstone::evaluate(chosen, judged, held_out);
    else capstone::train(process, chosen, result.empty() ? "/dev/null" : result, weights);
  });
}
