// All rungs in one table: each one change, each with its measured gain, on whatever device is here.
//
// You learn   that speed is made of many small things, none of which helps everywhere; to add them one at a time, to verify each,
//             to keep only what gains, and to say so where it loses. Scaling comes after: N slow devices are still slow.
// Run it      build/01_single_gpu/07_ladder
//             build/01_single_gpu/07_ladder --model resnet50 --image 224 --batch 64 --large-batch 256 --workers 8    (a GPU)
// You see     for every rung: samples/s, gain over what was kept below it, cumulative gain, share of time waiting for data,
//             utilisation; then the first and the last rung by turns in one run, which is the figure to quote.
// Read next   chapter 02, then 03: the same loop on many devices
#include "workload.hpp"  // Workload, Batches, train_plainly, expect_same_training, by_turns

#include <torch/optim/adam.h>

#include "06_cuda_graphs.hpp"         // GraphedStep
#include "measure/provenance.hpp"     // Row, write_row
#include "measure/table.hpp"          // Table
#include "models/memory_format.hpp"   // to_channels_last
#include "parallel/replicate.hpp"     // check_finite
#include "train/amp.hpp"              // Amp, Autocast
#include "train/flat_parameters.hpp"  // FlatParameters
#include "train/optimizer.hpp"        // Adam

using namespace manyranks;

namespace {

struct Recipe {
  int64_t batch = 16;
  int workers = 0;
  bool channels_last = false, fused = false, bfloat16 = false, graph = false;
  Difference limit = {};  // from the plain loop; 0: the same bits
};

class Trainer {
 public:
  Trainer(const Workload& workload, const Recipe& recipe)
      : batches(workload.batches(loading(workload, recipe))), recipe_(recipe), device_(workload.device()), rate_(workload.learning_rate()), model_(workload.make()) {
    if (recipe.channels_last) to_channels_last(*model_);
    if (recipe.fused) {
      flat_.emplace(*model_);
      in_one_pass_.emplace(flat_->parameters(), flat_->gradients(), AdamOptions{});
    } else {
      per_tensor_.emplace(model_->parameters(), torch::optim::AdamOptions(rate_));
    }
  }

  torch::Tensor step() {
    const auto [images, labels] = batches.next();
    const auto x = images.to(device_, /*non_blocking=*/true), y = labels.to(device_, /*non_blocking=*/true);
    torch::Tensor loss;
    recipe_.fused ? flat_->zero_grad() : per_tensor_->zero_grad();
#if defined(MANYRANKS_HAVE_CUDA)
    if (recipe_.graph) {
      if (!graph_) record(x, y);
      loss = graph_->replay(x, y);
    }
#endif
    if (!recipe_.graph) loss = forward_backward(x, y);
    recipe_.fused ? in_one_pass_->step(rate_) : static_cast<void>(per_tensor_->step());
    if (device_.is_cpu()) check_finite(loss);  // on a GPU a look at the loss would drain its queue: once per block is enough
    return loss;
  }

  const Model& model() const { return *model_; }

  Batches batches;

 private:
  static LoaderOptions loading(const Workload& workload, const Recipe& recipe) {
    LoaderOptions loading = workload.loading();
    loading.batch = recipe.batch, loading.workers = recipe.workers;
    loading.layout = recipe.channels_last ? Layout::hwc : Layout::chw;
    return loading;
  }
  torch::Tensor forward_backward(const torch::Tensor& x, const torch::Tensor& y) {
    torch::Tensor loss;
    {
      const Autocast autocast(Amp(recipe_.bfloat16 ? "bf16" : "off"), device_.type());  // weights and their updates stay in float32
      loss = cross_entropy(model_->forward(x), y);
    }
    loss.backward();
    return loss.detach();
  }
#if defined(MANYRANKS_HAVE_CUDA)
  void record(const torch::Tensor& x, const torch::Tensor& y) {
    std::vector<torch::Tensor> statistics;
    for (const auto& buffer : model_->buffers()) statistics.push_back(buffer.clone());
    graph_.emplace(x, y, [this](const torch::Tensor& a, const torch::Tensor& b) { return forward_backward(a, b); });
    for (size_t i = 0; i < statistics.size(); ++i) model_->buffers()[i].copy_(statistics[i]);
    flat_->zero_grad();
  }
  std::optional<GraphedStep> graph_;
#endif
  Recipe recipe_;
  torch::Device device_;
  double rate_;
  std::shared_ptr<Model> model_;
  std::optional<torch::optim::Adam> per_tensor_;
  std::optional<FlatParameters> flat_;
  std::optional<Adam> in_one_pass_;
};

// Against the plain loop with the same batch size; returns how far off it is.
Difference verify(Process& process, const Workload& workload, const std::string& name, const Recipe& recipe) {
  const Reference reference = train_plainly(workload, workload.steps(), recipe.batch);
  Trainer trainer(workload, recipe);
  Training training;
  for (int64_t i = 0; i < workload.steps(); ++i) process.set_step(i), training.add(trainer.step().item<double>(), trainer.model());
  trainer.batches.pause();
  return expect_same_training(name, training, trainer.model(), reference, recipe.limit);
}

// The gain of a rung over what it was timed by turns with: a row of its own, for two rates of different moments have no ratio.
void write_gain(Process& process, const Workload& workload, const std::string& variant, double gain) {
  Row row;
  row.set("variant", variant).set("workload", workload.name()).set("kind", "measured");
  row.set("rate_unit", "samples/s").set("measured", gain).set("unit", "gain");
  write_row(process, row);
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("01_single_gpu/07_ladder", "every rung of the chapter, one change each, in one table");
    Workload workload(options);
    int workers = 1;
    int64_t large_batch = 64;
    options.add("--workers", workers, "loader threads from the second rung on").between(1, 256);
    options.add("--large-batch", large_batch, "batch of the rung that enlarges it").positive();
    process.start(options);
    workload.open(process);
    if (options.quick) large_batch = 8;

    // 2. The rungs. Each changes one thing in the recipe of what was kept below it.
    struct Rung {
      std::string name;
      std::function<void(Recipe&)> change;
    };
    const std::vector<Rung> rungs{
        {fmt::format("+ {} loader worker(s)", workers), [&](Recipe& r) { r.workers = workers; }},
        {"+ channels_last", [&](Recipe& r) { r.channels_last = true, r.limit = {5e-3, workload.is_sensitive() ? 3e-2 : 1e-4, 0.5}; }},
        {"+ fused optimiser", [](Recipe& r) { r.fused = true, r.limit = {std::max(r.limit.losses, 1e-4), std::max(r.limit.gradient, 1e-6), std::max(r.limit.updates, 1e-2)}; }},
        {fmt::format("+ batch {}", large_batch), [&](Recipe& r) { r.batch = large_batch; }},
        {"+ bfloat16", [&](Recipe& r) { r.bfloat16 = true, r.limit = {5e-2, workload.is_sensitive() ? 0.7 : 0.1, 0.95}; }},
        {"+ CUDA graph", [](Recipe& r) { r.graph = r.fused = true; }},
    };

    // 3. The baseline, verified: the same bits as the loop of lesson 01.
    Recipe kept{.batch = workload.batch()};
    verify(process, workload, "baseline", kept);
    const Recipe baseline = kept;
    auto below = std::make_unique<Trainer>(workload, kept);
    double cumulative = 1, below_rate = 0;

    // 4. Rung by rung: verify, then time by turns with what was kept below it; keep what gains.
    Table table({"rung", "samples/s", "gain", "kept", "cumulative", "waits for data", process.device().is_cuda() ? "GPU busy" : "cores busy", "loss off by", "gradient off by"});
    const auto digits = [](double value) { return value == 0 ? std::string("0") : fmt::format("{:.0e}", value); };
    const auto add = [&](const std::string& name, const Speed& speed, const std::string& gain, const std::string& keep, const Difference& off) {
      table.add({name, fmt::format("{:.0f}", speed.samples_per_s), gain, keep, fmt::format("{:.2f}x", cumulative), fmt::format("{:.0f}%", 100 * speed.data_share),
                 fmt::format("{:.0f}%", 100 * speed.busy), digits(off.losses), digits(off.gradient)});
    };
    std::string not_here;
    for (const Rung& rung : rungs) {
      Recipe recipe = kept;
      rung.change(recipe);
      if (recipe.graph && !process.device().is_cuda()) {
        not_here += fmt::format("  {}: not measured, it needs a GPU\n", rung.name);
        continue;
      }
      const Difference off = verify(process, workload, rung.name, recipe);
      if (options.verify_only) continue;
      auto above = std::make_unique<Trainer>(workload, recipe);
      const auto speeds = by_turns(process, {{"below", &below->batches, kept.batch, [&] { below->step(); }}, {rung.name, &above->batches, recipe.batch, [&] { above->step(); }}},
                                   workload.blocks(), workload.samples_per_block());
      if (below_rate == 0) {
        add("baseline", speeds[0], "", "", {});
        write_speed(process, workload, "baseline", kept.batch, speeds[0]);
      }
      below_rate = speeds[0].samples_per_s;
      const double gain = speeds[1].samples_per_s / below_rate;
      const bool keep = gain > 1;
      if (keep) cumulative *= gain, kept = recipe, below = std::move(above);
      add(rung.name, speeds[1], fmt::format("{:.2f}x", gain), keep ? "yes" : "no", off);
      write_speed(process, workload, rung.name, recipe.batch, speeds[1], recipe.bfloat16 ? "bfloat16" : "float32");
      write_gain(process, workload, rung.name, gain);
    }
    if (options.verify_only) return;

    // 5. The figure to quote: first and last, by turns.
    Trainer first(workload, baseline), last(workload, kept);
    const auto speeds = by_turns(process, {{"baseline", &first.batches, baseline.batch, [&] { first.step(); }}, {"all kept", &last.batches, kept.batch, [&] { last.step(); }}},
                                 workload.blocks(), workload.samples_per_block());
    fmt::print("{}{}", table.text(2), not_here);
    fmt::print("  all that was kept against the baseline, by turns: {:.0f} and {:.0f} samples/s, {:.2f}x\n", speeds[1].samples_per_s, speeds[0].samples_per_s,
               speeds[1].samples_per_s / speeds[0].samples_per_s);
    write_speed(process, workload, "all kept", kept.batch, speeds[1], kept.bfloat16 ? "bfloat16" : "float32");
    write_gain(process, workload, "all kept", speeds[1].samples_per_s / speeds[0].samples_per_s);
    workload.close();
  });
}
