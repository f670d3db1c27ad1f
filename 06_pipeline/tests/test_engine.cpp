// Every schedule, on any number of stages and microbatches: gradients equal to the serial run, bit by bit.
#include <gtest/gtest.h>

#include "comm/communicator.hpp"
#include "comm/tests/rank_main.hpp"  // world
#include "engine.hpp"
#include "generate.hpp"
#include "launch/errors.hpp"
#include "measure/allocator.hpp"
#include "measure/verify.hpp"
#include "partition.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;
using manyranks::test::world;

namespace {

struct Problem {
  std::shared_ptr<Model> model;
  std::vector<torch::Tensor> inputs, targets;
  std::map<const void*, torch::Tensor> serial;  // gradients, by parameter
  double serial_loss = 0;
  UnitStage::Loss loss = [this](const torch::Tensor& output, int microbatch) {
    return cross_entropy(output, targets[microbatch]) / static_cast<double>(targets.size());
  };
};

// 8 units: enough for 4 stages of 2 chunks.
std::unique_ptr<Problem> make_problem(const std::string& kind, int microbatches, double dropout = 0) {
  auto problem = std::make_unique<Problem>();
  ModelShape shape = usual_shape(kind);
  shape.dropout = dropout;
  if (kind == "mlp") shape.image = 6, shape.width = 16, shape.layers = 7;
  if (kind == "gpt") shape.width = 16, shape.heads = 2, shape.context = 6, shape.vocab = 20, shape.layers = 6;
  torch::manual_seed(7);
  problem->model = make_model(kind, shape);
  for (int i = 0; i < microbatches; ++i) {
    problem->inputs.push_back(problem->model->example_input(2));
    problem->targets.push_back(problem->model->example_target(2));
  }
  problem->serial_loss = serial_step(*problem->model, problem->inputs, problem->loss, 5, 3);
  for (const auto& parameter : problem->model->parameters()) problem->serial[parameter.unsafeGetTensorImpl()] = parameter.grad();
  return problem;
}

// One step of the schedule; this rank's gradients against the serial ones. Returns what the engine saw.
Run expect_serial(Problem& problem, const Schedule& schedule, bool recompute = false) {
  problem.model->zero_grad();
  const size_t units = problem.model->units().size();
  const auto cut = partition_units(std::vector<double>(units, 1), schedule.virtual_stages());
  auto stages = cut_model(*problem.model, cut.units, world().rank(), world().size(), {.seed = 5, .recompute = recompute}, problem.loss);
  std::vector<Stage*> chunks;
  for (auto& stage : stages) {
    stage->begin_step(3);
    chunks.push_back(stage.get());
  }
  Engine engine(world(), schedule, chunks);
  engine.learn_shapes(problem.inputs[0]);
  Run run = engine.run(problem.inputs);
  for (auto& stage : stages)
    for (const auto& parameter : stage->parameters())
      expect_equal_bits(fmt::format("{} p={} m={} v={}", schedule.name, schedule.stages, schedule.microbatches, schedule.chunks), parameter.grad(),
                        problem.serial.at(parameter.unsafeGetTensorImpl()));
  const bool has_loss = world().rank() == schedule.place(schedule.virtual_stages() - 1).stage;
  EXPECT_EQ(run.loss, has_loss ? problem.serial_loss : 0);
  return run;
}

}  // namespace

class EveryModel : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Engine, EveryModel, testing::Values("mlp", "gpt"));

TEST_P(EveryModel, every_schedule_equals_the_serial_run_bit_by_bit) {
  for (int m = 1; m <= 16; ++m) {
    const auto problem = make_problem(GetParam(), m);
    for (const std::string& name : schedule_names()) expect_serial(*problem, generate(name, world().size(), m, name == "interleaved" ? 2 : 1));
  }
}

TEST_P(EveryModel, with_dropout_and_recomputation_too) {
  for (int m : {1, 3, 6}) {
    const auto problem = make_problem(GetParam(), m, 0.2);
    for (const std::string& name : schedule_names())
      for (bool recompute : {false, true}) expect_serial(*problem, generate(name, world().size(), m, name == "interleaved" ? 2 : 1), recompute);
  }
}

TEST(Engine, a_schedule_that_finishes_out_of_order_still_adds_in_order) {
  // GPipe with its backward passes reversed.
  Schedule schedule = generate("gpipe", world().size(), 5);
  for (auto& actions : schedule.actions)
    for (Action& action : actions)
      if (action.kind != Kind::forward && !carries_activation(action.kind)) action.microbatch = 4 - action.microbatch;
  schedule.name = "reversed";
  expect_serial(*make_problem("mlp", 5), schedule);
}

TEST(Engine, holds_as_many_bytes_as_the_schedule_says) {
  CountingAllocator::install();
  for (const std::string name : {"naive", "gpipe", "1f1b"}) {
    const Schedule schedule = generate(name, world().size(), 6);
    const auto run = expect_serial(*make_problem("gpt", 6), schedule);
    EXPECT_GT(run.first_activation_bytes, 0);
    EXPECT_EQ(run.activation_bytes, peak_live(schedule, world().rank()) * run.first_activation_bytes) << name << " stage " << world().rank();
  }
}

TEST(Engine, recomputation_holds_less) {
  CountingAllocator::install();
  const Schedule schedule = generate("gpipe", world().size(), 6);
  const auto whole = expect_serial(*make_problem("gpt", 6), schedule), again = expect_serial(*make_problem("gpt", 6), schedule, true);
  EXPECT_LT(again.activation_bytes, whole.activation_bytes / 2) << "stage " << world().rank();
}

TEST(Engine, refuses_a_schedule_that_is_not_sound_or_not_for_this_pipeline) {
  const auto problem = make_problem("mlp", 2);
  const auto cut = partition_units(std::vector<double>(8, 1), world().size());
  const auto stages = cut_model(*problem->model, cut.units, world().rank(), world().size(), {}, problem->loss);
  Schedule broken = generate("gpipe", world().size(), 2);
  broken.actions[0].pop_back();
  EXPECT_THROW(Engine(world(), broken, {stages[0].get()}), Error);
  EXPECT_THROW(Engine(world(), generate("gpipe", world().size() + 1, 2), {stages[0].get()}), Error);
}
