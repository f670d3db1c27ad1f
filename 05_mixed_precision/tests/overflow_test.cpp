// An infinity on one rank makes all ranks skip the same step, under every strategy; the rest of the run has the bits of a serial one that
// skips those steps.
#include <gtest/gtest.h>

#include <limits>

#include "comm/tests/rank_main.hpp"  // world
#include "measure/verify.hpp"        // expect_equal_bits
#include "parallel/replicate.hpp"    // trainable_parameters
#include "parallel/scaled_step.hpp"
#include "parallel/strategy.hpp"
#include "train/flat_parameters.hpp"
#include "workload.hpp"

namespace manyranks {
namespace {

constexpr int64_t steps = 9, batch = 4;

std::shared_ptr<Model> make() {
  ModelShape shape = usual_shape("convnet");
  shape.width = 4;
  torch::manual_seed(5);
  return make_model("convnet", shape);
}

Samples samples(const Model& model, int64_t step, int rank) {
  torch::manual_seed(static_cast<uint64_t>(1000 * step + rank));
  const auto x = model.example_input(batch);
  return {x, model.example_target(batch)};
}

// In step 2 the last rank, in step 5 rank 0, each in one element of one parameter: of the first and of the last one in the row of
// gradients, so that with shards different ranks own it. Of a gradient on its way, so that it travels as every other number does.
int injector(int64_t step, int world_size) { return step == 2 ? world_size - 1 : step == 5 ? 0 : -1; }
constexpr bool injected(int64_t step) { return step == 2 || step == 5; }

class Injection {
 public:
  Injection(const Model& model, int64_t step) {
    auto parameters = trainable_parameters(model);
    torch::Tensor target = step == 2 ? parameters.front().tensor : parameters.back().tensor;
    hook_ = target.register_hook([step](const torch::Tensor& gradient) {
      auto spoiled = gradient.clone();
      spoiled.view({-1})[step == 2 ? 0 : -1] = step == 2 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      return spoiled;
    });
    target_ = target;
  }
  ~Injection() { target_.remove_hook(hook_); }

 private:
  torch::Tensor target_;
  unsigned hook_ = 0;
};

void backward(const std::function<torch::Tensor(torch::Tensor)>& forward, const Samples& samples, const Amp& amp, float scale) {
  torch::Tensor loss;
  {
    const Autocast autocast(amp, torch::kCPU);
    loss = cross_entropy(forward(samples.x), samples.y);
  }
  (loss * scale).backward();
}

// Every rank's gradients in turn, added in rank order.
std::vector<torch::Tensor> serial(const Amp& amp, int ranks) {
  auto model = make();
  FlatParameters flat(*model);
  const auto optimizer = make_sgd()(flat.parameters(), flat.gradients());
  float scale = 1024;
  for (int64_t step = 0; step < steps; ++step) {
    torch::Tensor sum;
    for (int rank = 0; rank < ranks; ++rank) {
      flat.zero_grad();
      backward([&](const torch::Tensor& x) { return model->forward(x); }, samples(*model, step, rank), amp, scale);
      sum = rank == 0 ? flat.gradients().clone() : sum.add_(flat.gradients());
    }
    flat.gradients().copy_(sum);
    if (injected(step)) {
      scale /= 2;
    } else {
      optimizer->step(0.05, 1.0 / ranks / scale);
    }
  }
  std::vector<torch::Tensor> values;
  for (const auto& [name, tensor] : trainable_parameters(*model)) values.push_back(tensor.detach());
  return values;
}

void check(const std::string& kind) {
  SCOPED_TRACE(kind);
  Communicator& world = test::world();
  const Amp amp("fp16");
  auto model = make();
  ScaledStep scaled(world, amp, {.initial = 1024});
  const auto strategy = make_strategy(kind, world, *model, {scaled.wrap(make_sgd()), {4 << 10, 16 << 10}});
  for (int64_t step = 0; step < steps; ++step) {
    const auto before = strategy->gather_parameters();
    const float scale = scaled.scaler().scale();
    std::optional<Injection> injection;
    if (injector(step, world.size()) == world.rank()) injection.emplace(*model, step);
    torch::Tensor loss;
    {
      const auto [x, y] = samples(*model, step, world.rank());
      const Autocast autocast(amp, torch::kCPU);
      loss = cross_entropy(strategy->forward(x), y);
    }
    scaled.scale(loss).backward();
    strategy->step(0.05);
    // The same answer on every rank, and the right one.
    auto answers = torch::zeros({world.size()}, torch::kLong);
    world.all_gather(answers, torch::full({1}, scaled.stepped() ? 1 : 0, torch::kLong));
    EXPECT_TRUE(answers.eq(injected(step) ? 0 : 1).all().item<bool>()) << "step " << step << ": " << answers;
    EXPECT_EQ(scaled.scaler().scale(), injected(step) ? scale / 2 : scale) << "step " << step;
    const auto after = strategy->gather_parameters();
    if (injected(step)) {
      EXPECT_NO_THROW(expect_equal_bits("parameter after a skipped step", after, before)) << "step " << step;
    } else {
      EXPECT_FALSE(torch::equal(after.front(), before.front())) << "step " << step << " changed nothing";
    }
  }
  EXPECT_EQ(scaled.scaler().skipped(), 2);
  EXPECT_NO_THROW(expect_equal_bits("parameter", strategy->gather_parameters(), serial(amp, world.size())));
}

TEST(Overflow, AllRanksSkipTheSameStep) {
  for (const std::string kind : {"naive", "bucketed", "ddp", "horovod", "zero1", "zero2", "zero3"}) check(kind);
}

// A rank whose gradients are all finite skips because another one's are not: here ranks hold different numbers, as the shards of ZeRO or
// the parts of a pipeline do, and only the agreement tells them.
TEST(Overflow, OneRankSpeaksForAll) {
  Communicator& world = test::world();
  for (int guilty = 0; guilty < world.size(); ++guilty) {
    ScaledStep scaled(world, Amp("fp16"), {.initial = 4, .interval = 2});
    auto parameters = torch::ones({8}), gradients = torch::full({8}, 0.5F);
    const auto first = scaled.wrap(make_sgd(0.0))(parameters.narrow(0, 0, 4), gradients.narrow(0, 0, 4));
    const auto second = scaled.wrap(make_sgd(0.0))(parameters.narrow(0, 4, 4), gradients.narrow(0, 4, 4));
    if (world.rank() == guilty) gradients[7] = std::numeric_limits<float>::infinity();  // the second optimiser's: the first must wait for it
    first->step(1.0), second->step(1.0);
    EXPECT_FALSE(scaled.stepped());
    EXPECT_TRUE(parameters.eq(1).all().item<bool>()) << "guilty rank " << guilty;
    EXPECT_EQ(scaled.scaler().scale(), 2.0F);
    EXPECT_EQ(first->steps_done() + second->steps_done(), 0) << "a skipped step is none";
    gradients.fill_(0.5F);
    for (int i = 0; i < 2; ++i) first->step(1.0), second->step(1.0);
    EXPECT_TRUE(parameters.eq(0.5).all().item<bool>()) << parameters;  // 1 - 2 * 0.5 / 2
    EXPECT_EQ(scaled.scaler().scale(), 4.0F) << "two good steps";
    EXPECT_EQ(second->steps_done(), 2);
  }
}

// bfloat16 and off: no scale, no message, no change.
TEST(Overflow, WithoutLossScalingNothingIsSent) {
  Communicator& world = test::world();
  for (const char* name : {"off", "bf16"}) {
    ScaledStep scaled(world, Amp(name));
    auto parameters = torch::ones({4}), gradients = torch::ones({4});
    const auto optimizer = scaled.wrap(make_sgd(0.0))(parameters, gradients);
    const int64_t calls = world.traffic().calls;
    optimizer->step(0.5, 1.0);
    EXPECT_EQ(world.traffic().calls, calls);
    EXPECT_TRUE(parameters.eq(0.5).all().item<bool>());
    EXPECT_EQ(scaled.scale(torch::ones({1})).item<float>(), 1.0F);
  }
}

}  // namespace
}  // namespace manyranks
