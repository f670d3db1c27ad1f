// Parameters used twice, used by some ranks only, and not at all; when all-reduces start; ZeRO-3's units; batch normalisation over
// ranks; and what ranks must not disagree about.
#include <gtest/gtest.h>

#include <thread>

#include "comm/tests/rank_main.hpp"  // process, world
#include "launch/errors.hpp"
#include "measure/allocator.hpp"
#include "measure/verify.hpp"
#include "models/batch_norm.hpp"
#include "models/model.hpp"
#include "parallel/fully_sharded.hpp"
#include "parallel/strategy.hpp"
#include "parallel/sync_batch_norm.hpp"
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

void run_odd(const std::string& kind, int without_samples, int delayed = -1) {
  Communicator& world = test::world();
  auto model = make_odd();
  const auto strategy = make_strategy(kind, world, *model, {make_adam(), {64, 128}});
  for (int64_t step = 0; step < 8; ++step) {
    model->use_sometimes(uses_sometimes(step, world.rank()));
    if (world.rank() == without_samples) {
      strategy->follow();
    } else {
      const torch::Tensor output = strategy->forward(input(step, world.rank()));
      if (world.rank() == delayed) output.register_hook([](const torch::Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
      output.pow(2).sum().backward();
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
  for (const std::string kind : {"naive", "ddp", "horovod", "zero1", "zero2", "zero3"}) run_odd(kind, -1);
}

TEST(Hooks, ADelayedLastLayerChangesNothing) {
  for (const std::string kind : {"ddp", "horovod", "zero2", "zero3"}) run_odd(kind, -1, test::world().size() - 1);
}

// With all parameters used, every bucket but the last is handed out before backward is over. Fails if hooks only mark, and finish()
// starts everything.
TEST(Hooks, AllReducesStartDuringBackward) {
  Communicator& world = test::world();
  auto model = make_odd();
  model->use_sometimes(true);
  bool in_backward = false;
  int early = 0, late = 0;
  GradientBuckets buckets(world, *model, {64, 128}, [&](const auto& bucket) {
    ++(in_backward ? early : late);
    return world.all_reduce_async(bucket.gradients);
  });
  for (int64_t step = 0; step < 3; ++step) {
    early = late = 0;
    buckets.zero_grad();
    const torch::Tensor loss = model->forward(input(step, world.rank())).pow(2).sum();
    in_backward = true;
    loss.backward();
    in_backward = false;
    buckets.finish();
    if (step == 0) continue;  // in the order of registration the three unused ones may hold up everybody
    EXPECT_EQ(early + late, static_cast<int>(buckets.size()));
    EXPECT_LE(late, 1) << "the unused parameters lie in the last bucket";
    EXPECT_GE(early, 3);
  }
}

TEST(Hooks, ARankWithoutSamples) {
  for (const std::string kind : {"bucketed", "ddp", "horovod", "zero1", "zero2", "zero3"}) run_odd(kind, test::world().size() - 1);
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
  // A backward that threw, in an earlier test, is held by autograd until the next one: let go of it before counting.
  torch::ones({1}, torch::requires_grad()).sum().backward();
  auto& memory = CountingAllocator::get();
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
    EXPECT_EQ(most, sharded.two_largest_neighbours_bytes()) << phase;  // more: one stayed too long; less: none is fetched ahead
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

TEST(Hooks, ASecondBackwardIsAnError) {
  auto model = make_odd();
  GradientBuckets buckets(test::world(), *model, {64, 128}, [](const auto& bucket) { return test::world().all_reduce_async(bucket.gradients); });
  model->use_sometimes(true);
  model->forward(input(0, 0)).sum().backward();
  try {
    model->forward(input(1, 0)).sum().backward();
    FAIL() << "a gradient that was sent away was made again";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::disagree);
    EXPECT_NE(error.hint.find("NoSync"), std::string::npos) << error.hint;
  }
  buckets.finish();
}

// A layer on N ranks with 2, 3, 4, ... samples each (the last has none) against one layer that sees all of them.
TEST(SyncBatchNorm, EqualsOneBatchOfAllSamples) {
  Communicator& world = test::world();
  const int ranks = world.size();
  const auto count = [&](int rank) { return ranks > 1 && rank == ranks - 1 ? 0 : rank + 2; };
  torch::manual_seed(5);
  std::vector<torch::Tensor> xs, weights;
  for (int rank = 0; rank < ranks; ++rank) {
    xs.push_back(torch::randn({count(rank), 6, 5, 5}) * (1 + rank) + 3 * rank);  // so different that a rank's own statistics are far off
    weights.push_back(torch::randn({count(rank), 6, 5, 5}));
  }
  const auto make = [] {
    BatchNorm layer(6);
    torch::NoGradGuard no_grad;
    layer->weight.copy_(torch::linspace(0.5, 2, 6)), layer->bias.copy_(torch::linspace(-1, 1, 6));
    return layer;
  };
  struct Result {
    torch::Tensor y, dx, dweight, dbias, mean, variance;
  };
  const auto run = [](BatchNorm& layer, const torch::Tensor& x, const torch::Tensor& weight) {
    const torch::Tensor leaf = x.clone().requires_grad_();
    const torch::Tensor y = layer(leaf * 1.0);
    (y.pow(2) * weight).sum().backward();
    return Result{y.detach(), leaf.grad(), layer->weight.grad(), layer->bias.grad(), layer->running_mean, layer->running_var};
  };
  BatchNorm whole = make(), mine = make();
  const SyncBatchNorm sync(world, *mine);
  EXPECT_EQ(sync.layers(), 1);
  const Result all = run(whole, torch::cat(xs), torch::cat(weights)), part = run(mine, xs[world.rank()], weights[world.rank()]);
  int64_t begin = 0;
  for (int rank = 0; rank < world.rank(); ++rank) begin += count(rank);
  if (count(world.rank()) > 0) {
    EXPECT_NO_THROW(expect_close("output", part.y, all.y.narrow(0, begin, count(world.rank())), 1e-5));
    EXPECT_NO_THROW(expect_close("gradient of the input", part.dx, all.dx.narrow(0, begin, count(world.rank())), 1e-4));
  }
  const auto total = [&](torch::Tensor gradient) {
    gradient = gradient.clone();
    world.all_reduce(gradient);
    return gradient;
  };
  EXPECT_NO_THROW(expect_close("gradient of the weight", total(part.dweight), all.dweight, 1e-5));
  EXPECT_NO_THROW(expect_close("gradient of the bias", total(part.dbias), all.dbias, 1e-5));
  EXPECT_NO_THROW(expect_close("running mean", part.mean, all.mean, 1e-5));
  EXPECT_NO_THROW(expect_close("running variance", part.variance, all.variance, 1e-5));
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
