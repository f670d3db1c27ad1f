// What splitting a backward pass costs: (input part + weight part) over the whole, for a linear stack and a gpt block. At most 1.05.
#include "measure/provenance.hpp"
#include "measure/statistics.hpp"
#include "measure/table.hpp"
#include "launch/process.hpp"
#include "models/model.hpp"
#include "tape.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("06_pipeline/bench_split_backward", "split backward against the whole one");
    process.start(options);
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
      // Interleaved, so that a busy moment of the machine hits all three alike.
      std::vector<double> whole, input, weight, ratio;
      for (int64_t i = 0; i < options.steps_or(25, 2); ++i) {
        Tape one = record(), two = record();
        const WallTimer timer;
        one.backward(gradient);
        const double after_whole = timer.seconds();
        two.backward_input(gradient);
        const double after_input = timer.seconds();
        two.backward_weight();
        const double after_weight = timer.seconds();
        whole.push_back(after_whole), input.push_back(after_input - after_whole), weight.push_back(after_weight - after_input);
        ratio.push_back((after_weight - after_whole) / after_whole);
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
