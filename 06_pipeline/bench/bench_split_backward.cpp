// What splitting a backward pass costs: (input part + weight part) over the whole, for an mlp, a gpt and a resnet.
#include "measure/provenance.hpp"
#include "measure/statistics.hpp"
#include "measure/table.hpp"
#include "launch/process.hpp"
#include "models/model.hpp"
#include "report.hpp"
#include "tape.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("06_pipeline/bench_split_backward", "split backward against the whole one");
    process.start(options);
    keep_freed_memory();
    ModelShape mlp, gpt = usual_shape("gpt"), resnet = usual_shape("resnet18");
    mlp.image = 1, mlp.channels = mlp.width = options.quick ? 64 : 1024, mlp.layers = 4;
    gpt.width = options.quick ? 32 : 256, gpt.layers = 2;
    resnet.image = options.quick ? 8 : 32, resnet.classes = 10;
    Table table({"model", "whole", "input", "weight", "split/whole"});
    const std::vector<std::pair<std::string, ModelShape>> cases{{"mlp", mlp}, {"gpt", gpt}, {"resnet18", resnet}};
    for (const auto& [kind, shape] : cases) {
      torch::manual_seed(options.seed);
      const auto model = make_model(kind, shape);
      // From the first unit's output on: a stage in the middle, whose input needs a gradient.
      const auto x = model->units()[0]->forward(model->example_input(kind == "mlp" ? 128 : 8)).detach().requires_grad_(true);
      std::vector<torch::Tensor> parameters;
      for (size_t i = 1; i < model->units().size(); ++i)
        for (const auto& parameter : model->units()[i]->parameters()) parameters.push_back(parameter);
      torch::Tensor gradient;
      const auto record = [&] {
        torch::Tensor y = x;
        for (size_t i = 1; i < model->units().size(); ++i) y = model->units()[i]->forward(y);
        gradient = torch::ones_like(y);
        return Tape(x, y, parameters);
      };
      // By turns, and each first in every other round, so that a busy moment of the machine and a warm cache hit both alike.
      std::vector<double> whole, input, weight, ratio;
      const auto time = [](auto&& body) {
        const WallTimer timer;
        body();
        return timer.seconds();
      };
      for (int64_t i = 0; i < options.steps_or(41, 2) + 1; ++i) {
        Tape one = record(), two = record();
        double times[3];
        const auto run_whole = [&] { times[0] = time([&] { one.backward(gradient); }); };
        if (i % 2 == 0) run_whole();
        times[1] = time([&] { two.backward_input(gradient); });
        times[2] = time([&] { two.backward_weight(); });
        if (i % 2 == 1) run_whole();
        if (i == 0) continue;  // warms up
        whole.push_back(times[0]), input.push_back(times[1]), weight.push_back(times[2]);
        ratio.push_back((times[1] + times[2]) / times[0]);
      }
      Row row;
      row.set("variant", "split backward").set("workload", kind).set("kind", "measured").set("iterations", static_cast<int64_t>(ratio.size()));
      row.set("median_s", median(whole)).set("predicted", 1.0).set("measured", median(ratio)).set("unit", "split over whole");
      write_row(process, row);
      table.add({kind, format_seconds(median(whole)), format_seconds(median(input)), format_seconds(median(weight)), fmt::format("{:.3f}", median(ratio))});
    }
    if (process.is_root()) fmt::print("{}", table.text());
  });
}
