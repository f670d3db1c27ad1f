// Parameters used twice, used by some ranks only, and not at all; and what ranks must not disagree about.
#include <gtest/gtest.h>

#include "comm/tests/rank_main.hpp"  // process, world
#include "launch/errors.hpp"
#include "measure/allocator.hpp"
#include "measure/verify.hpp"
#include "models/model.hpp"
#include "parallel/fully_sharded.hpp"
#include "parallel/strategy.hpp"
#include "train/flat_parameters.hpp"

namespace manyranks {
namespace {

// y = tanh(tanh(x twice) twice) [+ x sometimes]: `twice` is used two times, `never` never, `sometimes` if asked.
class OddUnit : public Unit {
 public:
  OddUnit() {
    twice = register_parameter("twice", torch::randn({8, 8}));
    never = register_parameter("never", torch::randn({5}));
    sometimes = register_parameter("sometimes", torch::randn({8, 8}));
  }
  torch::Tensor forward(torch::Tensor x) override {
    torch::Tensor y = torch::tanh(torch::tanh(x.mm(twice)).mm(twice));
    return use_sometimes ? y + x.mm(sometimes) : y;
  }
  torch::Tensor twice, never, sometimes;
  bool use_sometimes = false;
};

class OddModel : public Model {
 public:
  OddModel() : Model("odd", {}) {
    for (int i = 0; i < 3; ++i) odd.push_back(register_module("unit" + std::to_string(i), add_unit(std::make_shared<OddUnit>())));
  }
  void use_sometimes(bool use) {
    for (auto& unit : odd) unit->use_sometimes = use;
  }
  std::vector<std::shared_ptr<OddUnit>> odd;
};

std::shared_ptr<OddModel> make_odd() {
  torch::manual_seed(3);
  return std::make_shared<OddModel>();
}

torch::Tensor input(int64_t step, int rank) { return torch::full({4, 8}, 0.01 * static_cast<double>(1 + step)) + torch::arange(32).reshape({4, 8}) * 0.01 * (rank + 1); }
bool uses_sometimes(int64_t step, int rank) { return (step + rank) % 2 == 0; }  // another half of the ranks each step

std::vector<torch::Tensor> serial(int ranks, int64_t steps) {
  auto model = make_odd();
  FlatParameters flat(*model);
  auto optimizer = make_adam()(flat.parameters(), flat.gradients());
  for (int64_t step = 0; step < steps; ++step) {
    torch::Tensor sum;
    for (int rank = 0; rank < ranks; ++rank) {
      flat.zero_grad();
      model->use_sometimes(uses_sometimes(step, rank));
      model->forward(input(step, rank)).pow(2).sum().backward();
      sum = rank == 0 ? flat.gradients().clone() : sum.add_(flat.gradients());
    }
    flat.gradients().copy_(sum);
    optimizer->step(1e-2, 1.0 / ranks);
  }
  std::vector<torch::Tensor> values;
  for (const auto& [name, tensor] : trainable_parameters(*model)) values.push_back(tensor.detach().clone());
  return values;
}

void run_odd(const std::string& kind, int without_samples) {
  Communicator& world = test::world();
  auto model = make_odd();
  const auto strategy = make_strategy(kind, world, *model, {make_adam(), {64, 128}});
  for (int64_t step = 0; step < 8; ++step) {
    model->use_sometimes(uses_sometimes(step, world.rank()));
    if (world.rank() == without_samples) {
      strategy->follow();
    } else {
      strategy->forward(input(step, world.rank())).pow(2).sum().backward();
    }
    strategy->step(1e-2);
  }
  const auto got = strategy->gather_parameters();
  if (without_samples < 0) {
    EXPECT_NO_THROW(expect_equal_bits(kind + ", parameter", got, serial(world.size(), 8)));
  }
  for (const auto& tensor : got) {  // all ranks agree
    auto first = tensor.clone();
    world.broadcast(first, 0);
    EXPECT_TRUE(torch::equal(first, tensor)) << kind;
  }
}

TEST(Hooks, UsedTwiceSometimesAndNever) {
  for (const std::string kind : {"naive", "ddp", "zero1", "zero2", "zero3"}) run_odd(kind, -1);
}

TEST(Hooks, ARankWithoutSamples) {
  for (const std::string kind : {"bucketed", "ddp", "zero1", "zero2", "zero3"}) run_odd(kind, test::world().size() - 1);
}

TEST(Hooks, BucketsAreRebuiltInTheOrderOfUse) {
  auto model = make_odd();
  model->use_sometimes(true);
  GradientBuckets buckets(test::world(), *model, {64, 128}, [](const auto& bucket) { return test::world().all_reduce_async(bucket.gradients); });
  EXPECT_EQ(buckets.names_in_order().front(), "unit2.sometimes");
  buckets.zero_grad();
  model->forward(input(0, 0)).sum().backward();
  buckets.finish();
  const auto names = buckets.names_in_order();
  for (size_t i = 6; i < 9; ++i) EXPECT_TRUE(names[i].ends_with("never")) << names[i];  // those that hold up nobody go last
  EXPECT_TRUE(names[0].starts_with("unit2"));
  EXPECT_EQ(buckets.parameters().numel(), parameter_count(*model));
}

TEST(Hooks, GradientAccumulation) {
  Communicator& world = test::world();
  auto model = make_odd();
  GradientBuckets buckets(world, *model, {64, 128}, [&](const auto& bucket) { return world.all_reduce_async(bucket.gradients); });
  for (int repeat = 0; repeat < 2; ++repeat) {  // before and after the buckets are rebuilt
    buckets.zero_grad();
    world.reset_traffic();
    {
      const GradientBuckets::NoSync no_sync(buckets);
      model->use_sometimes(true);
      model->forward(input(0, world.rank())).pow(2).sum().backward();
    }
    EXPECT_EQ(world.traffic().calls, 0);
    model->use_sometimes(false);  // the second microbatch does not touch it: the first one's gradient must not be lost
    model->forward(input(1, world.rank())).pow(2).sum().backward();
    buckets.finish();
    auto twin = make_odd();
    torch::Tensor sum;
    for (int rank = 0; rank < world.size(); ++rank) {
      twin->zero_grad();
      for (int64_t m = 0; m < 2; ++m) {
        twin->use_sometimes(m == 0);
        twin->forward(input(m, rank)).pow(2).sum().backward();
      }
      const auto gradient = twin->odd[1]->sometimes.grad();
      sum = rank == 0 ? gradient.clone() : sum + gradient;
    }
    EXPECT_TRUE(torch::equal(model->odd[1]->sometimes.grad(), sum));
  }
}

// The memory of parameters after each phase. Fails if units are not freed after forward, or not after backward.
TEST(Zero3, UnitsComeAndGo) {
  auto& memory = CountingAllocator::install();
  Communicator& world = test::world();
  ModelShape shape = usual_shape("gpt");
  shape.layers = 3, shape.width = 32, shape.context = 16, shape.vocab = 64;
  auto model = make_model("gpt", shape);
  const int64_t units = static_cast<int64_t>(model->units().size()), before = memory.live_bytes(Tag::parameters);
  FullySharded sharded(world, *model, 16 << 10, make_adam());
  const int64_t shard = memory.live_bytes(Tag::parameters) - before;
  const double count = static_cast<double>(parameter_count(*model));
  EXPECT_NEAR(static_cast<double>(shard), 4 * count / world.size(), 0.02 * 4 * count / world.size());

  const auto check = [&](const std::string& phase, const std::function<void()>& body) {
    memory.reset_peak();
    memory.start_events();
    body();
    int64_t came = 0, went = 0, live = 0, most = 0;
    for (const MemoryEvent& event : memory.stop_events()) {
      if (event.tag != Tag::parameters) continue;
      ++(event.bytes > 0 ? came : went);
      most = std::max(most, live += event.bytes);
    }
    EXPECT_EQ(came, units) << phase;
    EXPECT_EQ(went, units) << phase;
    EXPECT_LE(most, sharded.two_largest_neighbours_bytes()) << phase;
    EXPECT_EQ(memory.live_bytes(Tag::parameters) - before, shard) << phase;
  };
  const auto x = model->example_input(2), y = model->example_target(2);
  torch::Tensor loss;
  check("forward", [&] { loss = cross_entropy(sharded.forward(x), y); });
  check("backward", [&] {
    loss.backward();
    sharded.step(1e-3, 1.0);
  });
}

TEST(Zero3, TiedWeightsAreRefused) {
  ModelShape shape = usual_shape("gpt");
  shape.tie_weights = true;
  auto model = make_model("gpt", shape);
  EXPECT_THROW(FullySharded(test::world(), *model, 1 << 20, make_adam()), Error);
}

TEST(Zero2, ASecondBackwardIsAnError) {
  auto model = make_odd();
  ZeroSharded sharded(test::world(), *model, 2, 128, make_adam());
  model->use_sometimes(true);
  model->forward(input(0, 0)).sum().backward();
  try {
    model->forward(input(1, 0)).sum().backward();
    model->forward(input(1, 0)).sum().backward();
    FAIL() << "a gradient that was sent away was made again";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::disagree);
  }
  sharded.step(1e-3, 1.0);
}

TEST(Agreement, DifferentShapesAreNamed) {
  Communicator& world = test::world();
  if (world.size() == 1) return;
  ModelShape shape = usual_shape("mlp");
  if (world.rank() == world.size() - 1) shape.width += 1;
  auto model = make_model("mlp", shape);
  try {
    replicate(world, *model);
    FAIL() << "models of two shapes were taken for one";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::disagree);
    EXPECT_NE(error.cause.find("parameter 0"), std::string::npos) << error.cause;
  }
}

}  // namespace
}  // namespace manyranks
