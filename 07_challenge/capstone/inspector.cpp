#include "inspector.hpp"

#include <cmath>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>  // join

#include "launch/errors.hpp"       // verify_error
#include "parallel/replicate.hpp"  // trainable_parameters

namespace manyranks::capstone {
namespace {

// Relative to the loss, or to 1. The reference was off by 2e-7 at most; the rest is room for another order of additions, which batch normalisation enlarges.
constexpr double tolerance(bool gpt) { return gpt ? 1e-3 : 0.01; }

}  // namespace

double largest(Communicator& world, double mine, torch::Device device) {
  auto value = torch::tensor({mine}, torch::TensorOptions(torch::kDouble).device(device));
  world.all_reduce(value, ReduceOp::max);
  return value.item<double>();
}

uint64_t hash_of(const torch::Tensor& tensor, uint64_t hash) {
  const auto whole = tensor.detach().cpu().contiguous();
  size_t bytes = whole.nbytes();
  for (const auto* byte = static_cast<const unsigned char*>(whole.const_data_ptr()); bytes > 0; --bytes, ++byte) hash = (hash ^ *byte) * 1099511628211u;
  return hash;
}

// A block is half of what the target is averaged over: any `smooth` steps in a row hold a whole block, and so a checked step.
Inspector::Inspector(Process& process, const Task& task, uint64_t cap)
    : process_(process), task_(task), cap_(static_cast<int64_t>(cap)), block_(std::max<int64_t>(1, task.smooth / 2)) {
  if (process.is_root()) dense_ = task.dense();
  draw(0);
}

void Inspector::draw(int64_t first) { drawn_ = first + static_cast<int64_t>(chance_() % static_cast<uint64_t>(block_)); }

void Inspector::begins() { held_before_ = memory_.live_bytes(); }

std::vector<torch::Tensor> Inspector::whole_of(Trainer& trainer) {
  process_.world().barrier();
  const WallTimer timer;
  auto whole = trainer.whole();
  finish_device_work();
  whole_seconds_ += timer.seconds();
  return whole;
}

void Inspector::expect_given_weights(const std::vector<torch::Tensor>& whole) {
  const auto model = task_.dense();
  const auto given = trainable_parameters(*model);
  if (whole.size() != given.size()) throw verify_error("initial weights", fmt::format("whole() has {} tensors, the model {}", whole.size(), given.size()));
  for (size_t i = 0; i < given.size(); ++i)
    if (hash_of(whole[i]) != hash_of(given[i].tensor) || whole[i].sizes() != given[i].tensor.sizes())
      throw verify_error("initial weights", fmt::format("{} is not as it was given", given[i].name), "begin with Task::dense(), or with a ParallelGpt of the task's seed");
  for (const auto& tensor : whole) initial_hash_ = hash_of(tensor, initial_hash_);
}

// The weights are copied in every step, and looked at after the block: neither the calls nor the time between them tell which step is checked.
void Inspector::before(const std::vector<torch::Tensor>& whole) {
  if (!process_.is_root()) return;
  shown_.resize(whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto here = whole[i].detach().to(torch::kCPU, torch::kFloat).contiguous();
    shown_[i].assign(here.const_data_ptr<float>(), here.const_data_ptr<float>() + here.numel());
  }
}

void Inspector::after(int64_t step, double said, const Loader& loader) {
  if (!process_.is_root()) return;
  if (step == 0 || step == drawn_) kept_.push_back({step, said, std::move(shown_)});
  shown_.clear();
  if ((step + 1) % block_) return;
  expect_true_losses(loader);
  draw(step + 1);
}

// What the dense model says to the step's samples, with the weights that whole() showed: over the batch in one piece; for the resnet, until one is near
// enough to `enough`, also as the mean over equal slices of it, because batch normalisation sees as many samples as a rank or a microbatch has.
std::vector<double> Inspector::dense_losses(const Kept& kept, const Loader& loader, double enough) {
  torch::NoGradGuard no_graph;
  const auto parameters = trainable_parameters(*dense_);
  if (kept.weights.size() != parameters.size()) throw verify_error("loss", fmt::format("step {}: whole() has {} tensors, the model {}", kept.step, kept.weights.size(), parameters.size()));
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (static_cast<int64_t>(kept.weights[i].size()) != parameters[i].tensor.numel()) throw verify_error("loss", fmt::format("step {}: whole() gave {} another size", kept.step, parameters[i].name));
    std::copy(kept.weights[i].begin(), kept.weights[i].end(), parameters[i].tensor.data_ptr<float>());
  }
  const int64_t batch = task_.global_batch, world = process_.world_size();
  std::vector<int64_t> slices{1};
  for (int64_t k = 2; k <= batch / 2 && task_.name != "gpt"; ++k)
    if (batch % k == 0) slices.insert(k == world ? slices.begin() : slices.end(), k);  // the likely one first: each costs a forward pass
  std::vector<double> losses;
  for (const int64_t k : slices) {
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += task_.loss(*dense_, loader.make(kept.step, i * (batch / k), batch / k)).item<double>();
    losses.push_back(sum / static_cast<double>(k));
    if (std::abs(losses.back() - kept.said) <= enough * std::max(1.0, losses.back())) break;
  }
  return losses;
}

void Inspector::expect_true_losses(const Loader& loader) {
  for (const auto& kept : kept_) {
    const double most = tolerance(task_.name == "gpt");
    const auto losses = dense_losses(kept, loader, most);
    const double is = losses.back(), off = std::abs(kept.said - is) / std::max(1.0, is);  // the one that was near enough, if any was
    loss_error_ = std::max(loss_error_, off);
    if (!(off <= most))
      throw verify_error("loss", fmt::format("step {} returned {:.4f}; with the weights before it and the samples of this step it is {:.4f}{}", kept.step, kept.said, losses.front(),
                                             losses.size() > 1 ? fmt::format(" ({:.4f} over other slices)", fmt::join(losses.begin() + 1, losses.end(), ", ")) : ""),
                         "train on what the loader gives for this step, and return the mean over the global batch");
  }
  kept_.clear();
}

// Every sample of every step was drawn by somebody, and what was given is what the data say.
void Inspector::expect_given_data(const Loader& loader, int64_t steps) {
  auto drawn = torch::zeros({steps, task_.global_batch}, torch::kLong);
  for (const auto& given : loader.given_) {
    const Samples again = loader.make(given.step, given.first, given.count);
    if (hash_of(again.target, hash_of(again.input)) != given.hash) throw verify_error("data", fmt::format("what the loader gave for step {} is not the task's data", given.step));
    if (given.step < steps) drawn[given.step].narrow(0, given.first, given.count).fill_(1);
  }
  const Loader fresh(task_, torch::kCPU);
  if (fresh.text_.bytes != loader.text_.bytes) throw verify_error("data", "the text was changed");
  drawn = drawn.to(process_.device());
  process_.world().all_reduce(drawn, ReduceOp::max);
  drawn = drawn.cpu();
  if (const int64_t missing = (drawn == 0).sum().item<int64_t>(); missing > 0)
    throw verify_error("data", fmt::format("{} of {} samples were never drawn from the loader", missing, drawn.numel()), "loader.batch(step, ...) for all 0 .. global_batch - 1, over all ranks");
  for (int64_t step = 0; step < std::min<int64_t>(steps, 3); ++step) {
    const Samples samples = fresh.make(step, 0, task_.global_batch);
    data_hash_ = hash_of(samples.target, hash_of(samples.input, data_hash_));
  }
}

void Inspector::write(const std::string& path, int64_t steps, double loss) {
  const auto most = [&](double mine) { return largest(process_.world(), mine, process_.device()); };
  const double seconds = most(seconds_), whole_seconds = most(whole_seconds_), peak = most(static_cast<double>(peak_ - held_before_));
  if (!process_.is_root()) return;
  std::ofstream(path) << fmt::format(R"({{"seconds": {:.6f}, "whole_seconds": {:.6f}, "whole_calls": {}, "steps": {}, "loss": {:.6f}, "loss_error": {:.1e}, "peak_bytes": {:.0f}, "initial_hash": "{:016x}", "data_hash": "{:016x}"}})",
                                     seconds, whole_seconds, steps + 1, steps, loss, loss_error_, peak, initial_hash_, data_hash_)
                      << "\n";
  fmt::print("{}: target {:.3f} reached in {} steps, {:.3f} s (whole(): {:.3f} s); at most {:.1f} MiB per rank\n", task_.name, task_.target, steps, seconds, whole_seconds, peak / (1 << 20));
}

}  // namespace manyranks::capstone
