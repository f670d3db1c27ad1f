// Speed, memory and final loss of each precision, for each model, on the device there is: real training, mixed precision as LibTorch does it.
//   build/05_mixed_precision/bench_precision --models mlp,convnet --csv results/precision.csv
//   build/05_mixed_precision/bench_precision --models convnet --steps 2000 --data-set digits --max-gap 0.005     (exit 1 if half precision loses more)
//
// Precisions take turns, block by block of a fresh run each, so that all meet the same machine. Rows with `iterations` hold the loss
// curve (scripts/plot.py draws it); the row of the last step has speed, activations and accuracy too.
#include "workload.hpp"

#include <algorithm>

#include "comm/communicator.hpp"
#include "measure/provenance.hpp"  // write_row, fill
#include "measure/statistics.hpp"  // median, quantile
#include "measure/table.hpp"       // Table

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("05_mixed_precision/bench_precision", "speed, memory and loss by precision");
    std::vector<std::string> models{"mlp", "convnet", "resnet18"}, precisions{"off", "bf16", "fp16"};
    std::string data = "shapes";
    int64_t rounds = 3, width = 0, train_size = 4096, test_size = 2000;
    double rate = 2e-3, max_gap = -1;
    bool channels_last = false;
    options.add("--models", models, "what to train").list().one_of({"mlp", "convnet", "resnet18"});
    options.add("--precisions", precisions, "off, bf16, fp16").list().one_of({"off", "bf16", "fp16"});
    options.add("--data-set", data, "digits or shapes").one_of({"digits", "shapes"});
    options.add("--rounds", rounds, "runs of each precision, by turns").positive();
    options.add("--width", width, "of mlp and convnet; 0: the usual one");
    options.add("--rate", rate, "Adam's, at its highest");
    options.add("--train-size", train_size, "samples to learn from").positive();
    options.add("--test-size", test_size, "samples to be asked about").positive();
    options.add("--channels-last", channels_last, "images and weights in NHWC");
    options.add("--max-gap", max_gap, "exit 1 if a precision's accuracy is further below float32's (0.005: half a point)").not_negative();
    process.start(options);
    one_rank_only(process);
    const size_t full = static_cast<size_t>(std::find(precisions.begin(), precisions.end(), "off") - precisions.begin());
    const bool has_full = full < precisions.size();
    if (max_gap >= 0 && !has_full) throw usage_error("--max-gap", "there is no float32 run to compare with", "--precisions off,bf16,fp16");
    if (options.quick && !options.given("--train-size")) train_size = 512, test_size = 256;
    if (options.quick && !options.given("--models")) models = {"mlp", "convnet"};
    if (options.quick && !options.given("--rounds")) rounds = 1;
    fmt::print("  CPU: {}\n", process.cpu_note());
    const Images images = load_images(data, options.data, options.seed, train_size, test_size, process.device());

    Table table({"model", "precision", "step", "samples/s", "against float32", "activations", "last loss", "accuracy", "skipped"});
    std::string lost;  // who is too far below float32
    for (const std::string& model : models) {
      const bool large = model == "resnet18";
      Recipe recipe{.model = model, .steps = options.steps_or(large ? 12 : 200, 12), .batch = options.batch_or(large ? 16 : options.quick ? 16 : 64), .width = large ? 0 : width, .rate = rate, .seed = options.seed, .channels_last = channels_last};
      std::vector<std::vector<double>> seconds(precisions.size());
      std::vector<Outcome> outcomes(precisions.size());
      for (int64_t round = 0; round < rounds; ++round)
        for (size_t i = 0; i < precisions.size(); ++i) {
          recipe.amp = Amp(precisions[i]);
          Outcome outcome = train(process.world(), images, recipe, process.device());
          const auto warmup = std::min<std::ptrdiff_t>(2, std::ssize(outcome.seconds) - 1);
          seconds[i].insert(seconds[i].end(), outcome.seconds.begin() + warmup, outcome.seconds.end());
          if (round > 0 && outcome.losses != outcomes[i].losses) fmt::print("  {}, {}: this device does not repeat a run bit by bit\n", model, precisions[i]);
          outcomes[i] = std::move(outcome);
        }
      for (size_t i = 0; i < precisions.size(); ++i) {
        const Amp amp(precisions[i]);
        const Outcome& outcome = outcomes[i];
        const double step = median(seconds[i]), last = mean_of_last(outcome.losses, 5);
        table.add({model, amp.dtype_name(), fmt::format("{:.2f} ms", 1e3 * step), fmt::format("{:.0f}", static_cast<double>(recipe.batch) / step), has_full ? fmt::format("{:.2f}x", median(seconds[full]) / step) : "-",
                   format_bytes(outcome.activation_bytes), fmt::format("{:.3f}", last), fmt::format("{:.1f}%", 100 * outcome.accuracy), std::to_string(outcome.skipped)});
        Row same;  // in all rows of this run
        same.set("variant", channels_last ? "amp, NHWC" : "amp").set("workload", model + " on " + images.name).set("kind", "measured").set("dtype", amp.dtype_name()).set("batch", recipe.batch).set("global_batch", recipe.batch);
        const auto row_at = [&](int64_t iteration, double loss) { return Row(same).set("iterations", iteration).set("loss", loss); };
        for (int64_t at = 0; at + 1 < recipe.steps; at += std::max<int64_t>(1, recipe.steps / 10)) write_row(process, row_at(at, outcome.losses[static_cast<size_t>(at)]));
        Row row = row_at(recipe.steps, last);
        row.set("median_s", step).set("p95_s", quantile(seconds[i], 0.95)).set("rate", static_cast<double>(recipe.batch) / step).set("rate_unit", "samples/s");
        if (process.device().is_cpu()) row.set("peak_bytes", outcome.peak_bytes);
        write_row(process, row.set("measured", outcome.accuracy).set("unit", "accuracy"));
        if (process.device().is_cpu()) write_row(process, same.set("measured", static_cast<double>(outcome.activation_bytes)).set("unit", "activation bytes"));
        const double gap = has_full ? outcomes[full].accuracy - outcome.accuracy : 0;
        if (max_gap >= 0 && gap > max_gap) lost += fmt::format("{}{} in {} {:.2f} points", lost.empty() ? "" : ", ", model, amp.dtype_name(), 100 * gap);
      }
    }
    fmt::print("{}", table.text(2));
    if (!lost.empty()) throw verify_error("accuracy", fmt::format("below float32 by more than {:g} points: {}", 100 * max_gap, lost));
    if (max_gap >= 0) fmt::print("  no precision is more than {:g} points of accuracy below float32\n", 100 * max_gap);
  });
}
