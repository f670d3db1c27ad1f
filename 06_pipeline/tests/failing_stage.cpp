// Not a test by itself: a pipeline in which one stage stalls, stops, dies or throws in the backward pass of microbatch 2. CTest looks at
// what the job says and how it ends.
#include <csignal>
#include <thread>

#include "comm/communicator.hpp"
#include "engine.hpp"
#include "generate.hpp"
#include "launch/process.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;

namespace {

class FailingStage : public Stage {
 public:
  explicit FailingStage(std::string how) : how_(std::move(how)) {}
  torch::Tensor forward(int, torch::Tensor) override { return torch::zeros({1}); }
  torch::Tensor backward(int microbatch, torch::Tensor) override {
    if (microbatch == 2 && how_ == "stall") std::this_thread::sleep_for(std::chrono::minutes(5));
    if (microbatch == 2 && how_ == "stop") raise(SIGSTOP);
    if (microbatch == 2 && how_ == "die") raise(SIGKILL);
    if (microbatch == 2 && how_ == "throw") throw disagree_error("loss", "not finite");
    return torch::zeros({1});
  }
  torch::Tensor backward_input(int microbatch, torch::Tensor gradient) override { return backward(microbatch, gradient); }
  void backward_weight(int) override {}
  torch::Tensor shape_of_output(torch::Tensor) override { return torch::zeros({1}); }

 private:
  std::string how_;
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("06_pipeline/failing_stage", "what a dead or stalled stage looks like");
    std::string how = "stall";
    int which = 1;
    options.add("--how", how, "stall | stop | die | throw").one_of({"stall", "stop", "die", "throw"});
    options.add("--stage", which, "that fails");
    process.start(options);
    Communicator& world = process.world();
    FailingStage stage(world.rank() == which ? how : "");
    Engine engine(world, one_f_one_b_schedule(world.size(), 6), {&stage});
    engine.learn_shapes(torch::zeros({1}));
    engine.run(std::vector<torch::Tensor>(6, torch::zeros({1})));
    throw verify_error("failing_stage", "the pipeline came to its end");  // not in any of these tests
  });
}
