// Every schedule, on any number of stages and microbatches: gradients equal to the serial run, bit by bit. And below them the split
// backward: the same bits as the whole one, and no layer's input gradient twice.
#include <ATen/record_function.h>
#include <torch/nn.h>
#include <gtest/gtest.h>

#include "check.hpp"  // expect_sound
#include "comm/communicator.hpp"
#include "comm/tests/rank_main.hpp"  // world
#include "engine.hpp"
#include "generate.hpp"
#include "launch/errors.hpp"
#include "measure/allocator.hpp"
#include "measure/verify.hpp"
#include "models/flops.hpp"  // count_flops
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
  Amp amp;
  UnitStage::Loss loss = [this](const torch::Tensor& output, int microbatch) {
    return cross_entropy(output.to(torch::kFloat), targets[microbatch]) / static_cast<double>(targets.size());
  };
};

// 8 units: enough for 4 stages of 2 chunks.
std::unique_ptr<Problem> make_problem(const std::string& kind, int microbatches, double dropout = 0, const Amp& amp = {}) {
  auto problem = std::make_unique<Problem>();
  problem->amp = amp;
  ModelShape shape = usual_shape(kind);
  shape.dropout = dropout;
  if (kind == "mlp") shape.image = 6, shape.width = 16, shape.layers = 7;
  if (kind == "gpt") shape.width = 16, shape.heads = 2, shape.context = 6, shape.vocab = 20, shape.layers = 6;
  if (kind == "resnet18") shape.image = 8, shape.classes = 10;
  torch::manual_seed(7);
  problem->model = make_model(kind, shape);
  for (int i = 0; i < microbatches; ++i) {
    problem->inputs.push_back(problem->model->example_input(2));
    problem->targets.push_back(problem->model->example_target(2));
  }
  problem->serial_loss = serial_step(*problem->model, problem->inputs, problem->loss, 5, 3, amp);
  for (const auto& parameter : problem->model->parameters()) problem->serial[parameter.unsafeGetTensorImpl()] = parameter.grad();
  return problem;
}

// One step of the schedule; this rank's gradients against the serial ones. Returns what the engine saw.
Run expect_serial(Problem& problem, const Schedule& schedule, bool recompute = false) {
  problem.model->zero_grad();
  const size_t units = problem.model->units().size();
  const auto cut = partition_units(std::vector<double>(units, 1), schedule.virtual_stages());
  auto stages = cut_model(*problem.model, cut.units, world().rank(), world().size(), {.seed = 5, .recompute = recompute, .amp = problem.amp}, problem.loss);
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

// Fails if a unit, a repeated forward pass or the reference runs in another precision than the rest.
TEST_P(EveryModel, in_half_precision_too) {
  for (const std::string format : {"bf16", "fp16"}) {
    const auto problem = make_problem(GetParam(), 3, 0.2, Amp(format));
    for (const std::string& name : schedule_names())
      for (bool recompute : {false, true}) expect_serial(*problem, generate(name, world().size(), 3, name == "interleaved" ? 2 : 1), recompute);
  }
}

TEST(Engine, half_precision_travels_in_half_the_bytes) {
  if (world().size() == 1) return;
  const auto sent = [](const Amp& amp) {
    const auto problem = make_problem("mlp", 4, 0, amp);
    const int64_t before = world().traffic().bytes_sent;
    expect_serial(*problem, generate("1f1b", world().size(), 4));
    return world().traffic().bytes_sent - before;
  };
  const int64_t shapes = world().rank() + 1 < world().size() ? 16 * 8 : 0;  // learn_shapes()
  EXPECT_EQ(2 * (sent(Amp("bf16")) - shapes), sent(Amp()) - shapes);
}

TEST(Engine, a_resnet_too) {
  const auto problem = make_problem("resnet18", 3);
  for (const std::string& name : schedule_names()) expect_serial(*problem, generate(name, world().size(), 3, name == "interleaved" ? 2 : 1));
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

// Activations and gradients that go the same way between two ranks (interleaved does that) are told apart by their tags: here a stage
// takes them in another order than they were sent.
TEST(Engine, a_gradient_may_be_received_before_an_activation_that_was_sent_first) {
  if (world().size() != 2) return;
  const Schedule plain = generate("interleaved", 2, 4, 2);
  const auto is_receive = [](const Action& action) { return action.kind == Kind::receive_activation || action.kind == Kind::receive_gradient; };
  int tried = 0;
  for (int stage = 0; stage < 2; ++stage)
    for (size_t from = 1; from < plain.actions[stage].size(); ++from) {
      Schedule moved = plain;
      auto& actions = moved.actions[stage];
      const Action late = actions[from];
      if (!is_receive(late)) continue;
      size_t to = from;  // before the receive of the other kind that comes next above it
      while (to > 0 && !(is_receive(actions[to - 1]) && actions[to - 1].kind != late.kind)) --to;
      if (to-- == 0) continue;
      actions.erase(actions.begin() + static_cast<long>(from));
      actions.insert(actions.begin() + static_cast<long>(to), late);
      try {
        expect_sound(moved);
      } catch (const Error&) {
        continue;  // it waits for itself
      }
      ++tried;
      moved.name = fmt::format("stage {}, receive {} moved to {}", stage, from, to);
      expect_serial(*make_problem("mlp", 4), moved);
    }
  EXPECT_GT(tried, 0);
}

TEST(Engine, holds_as_many_bytes_as_the_schedule_says) {
  for (const int m : {2, 6})
    for (const std::string name : {"naive", "gpipe", "1f1b"}) {
      const int stage = world().rank(), peak = name == "naive" ? 1 : name == "gpipe" ? m : std::min(m, world().size() - stage);
      const auto run = expect_serial(*make_problem("gpt", m), generate(name, world().size(), m));
      EXPECT_GT(run.first_activation_bytes, 0);
      EXPECT_EQ(run.activation_bytes, peak * run.first_activation_bytes) << name << " m=" << m << " stage " << stage;
    }
}

TEST(Engine, recomputation_holds_less) {
  const Schedule schedule = generate("gpipe", world().size(), 6);
  const auto whole = expect_serial(*make_problem("gpt", 6), schedule), again = expect_serial(*make_problem("gpt", 6), schedule, true);
  EXPECT_LT(again.activation_bytes, whole.activation_bytes / 2) << "stage " << world().rank();
}

TEST(Engine, leaves_nothing_behind) {
  for (const std::string& name : schedule_names()) {
    const int64_t before = CountingAllocator::get().live_bytes(Tag::activations);
    expect_serial(*make_problem("gpt", 5), generate(name, world().size(), 5, name == "interleaved" ? 2 : 1));
    EXPECT_EQ(CountingAllocator::get().live_bytes(Tag::activations), before) << name << " stage " << world().rank();
  }
}

TEST(Engine, refuses_tied_weights_across_a_cut) {
  ModelShape shape = usual_shape("gpt");
  shape.layers = 2, shape.width = 16, shape.context = 8, shape.vocab = 32, shape.tie_weights = true;
  const auto model = make_model("gpt", shape);
  EXPECT_THROW(cut_model(*model, {2, 2}, 0, 2, {}, {}), Error);
  EXPECT_NO_THROW(cut_model(*model, {4}, 0, 1, {}, {}));
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

struct Case {
  std::string kind;
  ModelShape shape;
};

static std::vector<Case> split_cases() {
  ModelShape mlp, convnet = usual_shape("convnet"), resnet = usual_shape("resnet18"), gpt = usual_shape("gpt");
  mlp.image = 8, mlp.width = 16;
  convnet.width = 4, convnet.image = 8;
  resnet.image = 16, resnet.classes = 10;
  gpt.layers = 2, gpt.width = 16, gpt.context = 8, gpt.vocab = 32;
  ModelShape tied = gpt;
  tied.tie_weights = true;
  return {{"mlp", mlp}, {"convnet", convnet}, {"resnet18", resnet}, {"gpt", gpt}, {"gpt", tied}};
}

TEST(Tape, the_two_parts_give_the_bits_of_the_whole) {
  for (const Case& c : split_cases()) {
    torch::manual_seed(1);
    const auto model = make_model(c.kind, c.shape);
    const auto input = model->example_input(2), target = model->example_target(2);
    for (bool input_needs_gradient : {false, true}) {
      if (input_needs_gradient && c.kind == "gpt") continue;  // tokens have none
      const auto run = [&] {
        const auto x = input.detach().requires_grad_(input_needs_gradient);
        return Tape(x, cross_entropy(model->forward(x), target), model->parameters());
      };
      const auto one = torch::ones({});
      const Tape::Gradients whole = run().backward(one);
      Tape split = run();
      const auto input_gradient = split.backward_input(one);
      const auto weights = split.backward_weight();
      ASSERT_EQ(input_gradient.defined(), input_needs_gradient);
      if (input_needs_gradient) expect_equal_bits("input", input_gradient, whole.input);
      ASSERT_EQ(weights.size(), whole.weights.size());
      for (size_t i = 0; i < weights.size(); ++i) ASSERT_TRUE(weights[i].defined()) << c.kind << " " << i;
      expect_equal_bits(c.kind, weights, whole.weights);
    }
  }
}

TEST(Tape, an_unused_parameter_has_no_gradient) {
  const auto used = torch::ones({2, 2}, torch::requires_grad()), unused = torch::ones({2}, torch::requires_grad());
  const auto x = torch::ones({2, 2}, torch::requires_grad());
  Tape tape(x, torch::mm(x, used).sum(), {used, unused});
  EXPECT_TRUE(tape.backward_input(torch::ones({})).defined());
  const auto weights = tape.backward_weight();
  EXPECT_TRUE(weights[0].defined());
  EXPECT_FALSE(weights[1].defined());
}

TEST(Tape, the_weight_part_repeats_nothing) {
  // 6 linear layers, (4, 8) x (8, 8) each: 6 products for the inputs' gradients, 6 for the weights', however they are split.
  const double product = 2.0 * 4 * 8 * 8;
  torch::nn::Sequential layers;
  for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(8, 8));
  const auto run = [&] {
    const auto x = torch::ones({4, 8}, torch::requires_grad());
    return Tape(x, layers->forward(x), layers->parameters());
  };
  Tape whole = run(), split = run();
  const auto gradient = torch::ones({4, 8});
  EXPECT_EQ(count_flops([&] { whole.backward(gradient); }), 12 * product);
  EXPECT_EQ(count_flops([&] { split.backward_input(gradient); }), 6 * product);
  EXPECT_EQ(count_flops([&] { split.backward_weight(); }), 6 * product);
}

TEST(Tape, the_input_part_gives_back_what_only_it_needed) {
  const auto& memory = CountingAllocator::get();
  const MemoryTag tag(Tag::activations, "test");
  torch::nn::Sequential layers(torch::nn::Linear(64, 64), torch::nn::GELU(), torch::nn::GELU(), torch::nn::GELU(), torch::nn::Linear(64, 64));
  const int64_t activation = 256 * 64 * 4;
  const auto x = torch::ones({256, 64}, torch::requires_grad()), gradient = torch::ones({256, 64});
  Tape tape(x, layers->forward(x), layers->parameters());
  const int64_t before = memory.live_bytes(Tag::activations);
  tape.backward_input(gradient);
  // The inputs of three GELUs go; the gradient at the first layer stays for its weight part.
  EXPECT_EQ(memory.live_bytes(Tag::activations) - before, -3 * activation + activation);
}

// How often operators with that word in their name run in `body`.
static int count_calls(const std::string& word, const std::function<void()>& body) {
  static thread_local const std::string* wanted;
  static thread_local int calls;
  wanted = &word, calls = 0;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    calls += std::string(function.name()).find(*wanted) != std::string::npos;
    return nullptr;
  }).scopes({at::RecordScope::FUNCTION}));
  body();
  at::removeCallback(handle);
  return calls;
}

TEST(Tape, a_normalisation_is_asked_once) {
  // The gradients of its weights are sums that the gradient of its input needs too: the input part makes both.
  torch::nn::Sequential layers(torch::nn::Conv2d(3, 3, 1), torch::nn::BatchNorm2d(3), torch::nn::Conv2d(3, 3, 1));
  const auto x = torch::randn({2, 3, 4, 4}).requires_grad_(true), gradient = torch::randn({2, 3, 4, 4});
  const auto run = [&] { return Tape(x, layers->forward(x), layers->parameters()); };
  Tape whole = run(), split = run();
  EXPECT_EQ(count_calls("batch_norm_backward", [&] { whole.backward(gradient); }), 1);
  EXPECT_EQ(count_calls("batch_norm_backward", [&] { split.backward_input(gradient); }), 1);
  EXPECT_EQ(count_calls("batch_norm_backward", [&] { split.backward_weight(); }), 0);
}
