// What goes wrong in real jobs, on purpose: each must end the whole job with one line and the right exit code, never hang.
#include "comm/communicator.hpp"
#include "launch/process.hpp"
#include "models/model.hpp"
#include "parallel/replicate.hpp"
#include "parallel/strategy.hpp"

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("03_data_parallel/tests/faults", "faults on purpose");
    std::string fault = "none", kind = "ddp";
    options.add("--fault", fault, "none | shapes | kinds | nan | skip-step");
    options.add("--strategy", kind, "which strategy");
    process.start(options);
    Communicator& world = process.world();
    const bool odd_one = world.rank() == world.size() - 1;
    ModelShape shape = usual_shape("mlp");
    if (fault == "shapes" && odd_one) shape.width = 64;
    if (fault == "kinds" && odd_one) shape.layers = 1;
    auto model = make_model("mlp", shape);
    const auto strategy = make_strategy(kind, world, *model, {make_adam(), {}});
    for (int64_t step = 0; step < 5; ++step) {
      process.set_step(step);
      if (fault == "skip-step" && odd_one && step == 2) continue;  // one rank does a step less: found at the next that differs, or at the end
      auto x = model->example_input(4);
      if (fault == "nan" && odd_one && step == 3) x[0][0][0][0] = NAN;
      const auto loss = cross_entropy(strategy->forward(x), model->example_target(4));
      check_finite(loss);
      loss.backward();
      strategy->step(1e-3);
    }
  });
}
