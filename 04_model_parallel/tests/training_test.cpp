// Whole runs against the dense model: 20 steps of every mode, what they send, and what they hold.
#include <gtest/gtest.h>

#include "comm/tests/rank_main.hpp"  // world
#include "costs.hpp"
#include "measure/allocator.hpp"
#include "measure/verify.hpp"
#include "models/gpt.hpp"
#include "parallel/mesh.hpp"
#include "parallel/parallel_gpt.hpp"
#include "parallel/replicate.hpp"
#include "parallel/strategy.hpp"
#include "workload.hpp"

namespace manyranks {
namespace {

using test::world;
using torch::Tensor;

constexpr int64_t steps = 20;
constexpr std::array sequences{Sequence::whole, Sequence::split, Sequence::regather};
const char* const names[] = {"whole", "split", "regather"};
std::string name_of(Sequence sequence) { return names[static_cast<int>(sequence)]; }

// SGD with momentum in any precision: unlike Adam it shows a gradient that is wrong by a factor.
struct Momentum {
  explicit Momentum(torch::nn::Module& module) : parameters(module.parameters()) {
    for (const Tensor& parameter : parameters) velocity.push_back(torch::zeros_like(parameter));
  }
  void step(double scale = 1.0) {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      velocity[i].mul_(0.9).add_(parameters[i].grad(), scale);
      parameters[i].sub_(velocity[i], 0.05);
      parameters[i].mutable_grad() = Tensor();
    }
  }
  std::vector<Tensor> parameters, velocity;
};

struct Small {
  Options options{"test", ""};
  Workload workload{options};
  Small() {
    options.quick = true;
    options.batch = 2;
    workload.prepare();
  }
  void use(double dropout, bool tied) { workload.shape.dropout = dropout, workload.shape.tie_weights = tied; }
};

// Dense, fp64: shards in turn, as one process would do it.
Curve dense_run(const Workload& workload, int64_t shards) {
  auto model = workload.dense();
  model->to(torch::kDouble);
  Momentum optimizer(*model);
  Curve curve;
  for (int64_t step = 0; step < steps; ++step) {
    curve.losses.push_back(0);
    for (int64_t shard = 0; shard < shards; ++shard) {
      const auto [tokens, target] = workload.batch(step, shard * workload.batch_size());
      const auto loss = cross_entropy(model->forward(tokens), target);
      loss.backward();
      curve.losses.back() += loss.item<double>() / static_cast<double>(shards);
    }
    optimizer.step(1.0 / static_cast<double>(shards));
  }
  curve.parameters = model->parameters();
  return curve;
}

// fp64 on a mesh; `data` averages gradients by hand. spoil() may set the keys wrong.
Curve parallel_run(const Workload& workload, Communicator& tensor, Communicator& data, Sequence sequence, const std::function<void(RandomKeys&)>& spoil = {}) {
  ParallelGpt model(workload.shape, {tensor, sequence}, {.seed = workload.seed(), .first_sample = data.rank() * workload.batch_size()});
  model.to(torch::kDouble);
  if (spoil) spoil(model.keys());
  Momentum optimizer(model);
  Curve curve;
  for (int64_t step = 0; step < steps; ++step) {
    model.keys().step = step;
    const auto [tokens, target] = workload.batch(step, data.rank() * workload.batch_size());
    const auto loss = model.loss(model.forward(tokens), target);
    loss.backward();
    auto sum = loss.detach().clone();
    data.all_reduce(sum);
    for (const Tensor& parameter : model.parameters()) data.all_reduce(parameter.mutable_grad());
    optimizer.step(1.0 / data.size());
    curve.losses.push_back(sum.item<double>() / data.size());
  }
  curve.parameters = model.gather_whole();
  return curve;
}

void expect_same(const std::string& name, const Curve& got, const Curve& expected, double tolerance = 1e-10) {
  for (size_t step = 0; step < expected.losses.size(); ++step) EXPECT_NEAR(got.losses[step], expected.losses[step], tolerance * expected.losses[step]) << name << ", step " << step;
  EXPECT_NO_THROW(expect_close(name, got.parameters, expected.parameters, tolerance));
}

TEST(Training, EveryModeEqualsDenseInDouble) {
  Small small;
  const auto alone = world().split(world().rank(), 0);
  for (const bool tied : {false, true}) {
    small.use(0, tied);
    const Curve dense = dense_run(small.workload, 1);
    EXPECT_LT(dense.losses.back(), dense.losses.front() - 1.0);  // it learns: not a comparison of two runs that stand still
    for (const Sequence sequence : sequences) expect_same(name_of(sequence), parallel_run(small.workload, world(), *alone, sequence), dense);
  }
}

TEST(Training, EveryMeshEqualsDenseInDouble) {
  Small small;
  for (int tp = 1; tp <= world().size(); ++tp) {
    if (world().size() % tp) continue;
    const Mesh mesh(world(), {{"dp", world().size() / tp}, {"tp", tp}});
    const Curve dense = dense_run(small.workload, world().size() / tp);
    for (const Sequence sequence : {Sequence::whole, Sequence::split}) expect_same(mesh.text() + " " + name_of(sequence), parallel_run(small.workload, mesh["tp"], mesh["dp"], sequence), dense);
  }
}

// With dropout the reference is the same model on one rank: masks must not depend on who holds what.
TEST(Training, DropoutIsTheSameHoweverItIsCut) {
  Small small;
  small.use(0.1, false);
  const auto alone = world().split(world().rank(), 0);
  const Curve one = parallel_run(small.workload, *alone, *alone, Sequence::whole);
  for (const Sequence sequence : sequences) expect_same("dropout, " + name_of(sequence), parallel_run(small.workload, world(), *alone, sequence), one);
}

double difference(const Curve& a, const Curve& b) { return relative_difference(a.parameters, b.parameters); }

// The mask of every rank's heads (and of its tokens) is rank 0's: what one seed for all does where state is split.
TEST(Training, SameDropoutSeedWhereSplitIsFound) {
  if (world().size() == 1) return;
  Small small;
  small.use(0.1, false);
  const auto alone = world().split(world().rank(), 0);
  const Curve one = parallel_run(small.workload, *alone, *alone, Sequence::whole);
  for (const Sequence sequence : {Sequence::whole, Sequence::split}) {
    const Curve wrong = parallel_run(small.workload, world(), *alone, sequence, [](RandomKeys& keys) { keys.tensor_rank = 0; });
    EXPECT_GT(difference(wrong, one), 1e-4) << name_of(sequence);
  }
}

// Another mask on each rank for what all hold: the copies drift apart, and so does the loss.
TEST(Training, OtherDropoutSeedWhereReplicatedIsFound) {
  if (world().size() == 1) return;
  Small small;
  small.use(0.1, false);
  const auto alone = world().split(world().rank(), 0);
  const Curve one = parallel_run(small.workload, *alone, *alone, Sequence::whole);
  const Curve wrong = parallel_run(small.workload, world(), *alone, Sequence::whole, [](RandomKeys& keys) { keys.seed += static_cast<uint64_t>(world().rank()); });
  EXPECT_GT(largest_over(world(), difference(wrong, one)), 1e-4);
}

// fp32, Adam, ZeRO on the data axis: the loss within 1e-4 of dense, and every stage the same bits as plain data parallelism.
TEST(Training, ZeroOnEveryMesh) {
  Small small;
  for (int tp = 1; tp <= world().size(); ++tp) {
    if (world().size() % tp) continue;
    const Mesh mesh(world(), {{"dp", world().size() / tp}, {"tp", tp}});
    Communicator& data = mesh["dp"];
    const Curve dense = train_dense(small.workload, world(), steps, data.size());
    for (const Sequence sequence : {Sequence::whole, Sequence::regather}) {
      std::vector<Tensor> ddp;
      for (const std::string kind : {"ddp", "zero1", "zero2", "zero3"}) {
        ParallelGpt model(small.workload.shape, {mesh["tp"], sequence}, {.seed = small.workload.seed()});
        const auto strategy = make_strategy(kind, data, model, {make_adam(), {4 << 10, 64 << 10}});
        std::vector<double> losses;
        for (int64_t step = 0; step < steps; ++step) {
          const auto [tokens, target] = small.workload.batch(step, data.rank() * small.workload.batch_size());
          const auto loss = model.loss(strategy->forward(tokens), target);
          loss.backward();
          strategy->step(small.workload.learning_rate());
          auto sum = loss.detach().clone();
          data.all_reduce(sum);
          losses.push_back(sum.item<double>() / data.size());
        }
        const std::string name = fmt::format("{} {} {}", mesh.text(), name_of(sequence), kind);
        EXPECT_NO_THROW(expect_same_losses(losses, dense.losses)) << name;
        const auto parameters = strategy->gather_parameters();
        if (kind == "ddp") ddp = parameters;
        EXPECT_NO_THROW(expect_equal_bits(name, parameters, ddp));
      }
    }
  }
}

// Large enough that no message is one of the small ones (8 KiB), which every rank reads whole.
struct Large : Small {
  Large() {
    options.batch = 24;
    workload.shape.width = 384, workload.shape.context = 96, workload.shape.layers = 1;
  }
};

// Bytes that a rank sent, mean over ranks: an odd count gives one of them a few elements more than another.
double mean_sent(const Traffic& traffic) {
  auto sum = torch::tensor({traffic.bytes_sent}, torch::kLong);
  world().all_reduce(sum);
  return static_cast<double>(sum.item<int64_t>()) / world().size();
}

// Block by block: the traffic of each forward pass and each backward pass, and the number of calls.
TEST(Costs, CommunicationOfABlock) {
  Large small;
  const ModelShape shape = small.workload.shape;
  const int64_t tokens = small.workload.batch_size() * shape.context, n = world().size();
  for (const Sequence sequence : sequences) {
    const ParallelGpt model(shape, {world(), sequence}, {});
    const auto x = torch::randn({small.workload.batch_size(), sequence == Sequence::whole ? shape.context : shape.context / n, shape.width}).requires_grad_();
    const double all = static_cast<double>(tokens * shape.width);
    world().reset_traffic();
    const auto y = model.units()[1]->forward(x);
    const Traffic forward = world().traffic();
    y.sum().backward();
    const Traffic both = world().traffic();
    EXPECT_EQ(mean_sent(forward), sent_bytes(2 * all, n)) << name_of(sequence);  // the same in all three
    EXPECT_EQ(mean_sent(both), sent_bytes(moved_by_block(shape, tokens, sequence), n)) << name_of(sequence);
    if (n == 1) continue;
    const auto calls = [](const Traffic& traffic, const std::string& operation) { return traffic.calls_by_operation.count(operation) ? traffic.calls_by_operation.at(operation) : 0; };
    if (sequence == Sequence::whole) {
      EXPECT_EQ(calls(forward, "all_reduce"), 2);
      EXPECT_EQ(calls(both, "all_reduce"), 4);
      EXPECT_EQ(both.calls, 4);
    } else {
      EXPECT_EQ(calls(forward, "reduce_scatter"), 2);
      EXPECT_EQ(calls(forward, "all_gather"), 2);
      EXPECT_EQ(calls(both, "reduce_scatter"), 4);
      EXPECT_EQ(calls(both, "all_gather"), sequence == Sequence::split ? 4 : 6);
      EXPECT_EQ(calls(both, "all_reduce"), 1);  // six gradients of replicated parameters together
    }
  }
}

TEST(Costs, CommunicationOfAStep) {
  Large small;
  const ModelShape shape = small.workload.shape;
  const int64_t tokens = small.workload.batch_size() * shape.context;
  for (const Sequence sequence : sequences) {
    ParallelGpt model(shape, {world(), sequence}, {});
    const auto [text, target] = small.workload.batch(0);
    world().reset_traffic();
    model.loss(model.forward(text), target).backward();
    const double moved = static_cast<double>(shape.layers) * moved_by_block(shape, tokens, sequence) + moved_by_ends(shape, tokens, sequence);
    // The last norm's gradients, 2 C, are a small message: each rank reads the others' whole, n - 1 times its size in place of 2(n-1)/n.
    const double norm = sequence == Sequence::whole ? 0 : 2 * static_cast<double>(shape.width), n = world().size();
    EXPECT_EQ(mean_sent(world().traffic()), sent_bytes(moved - norm, world().size()) + (n - 1) * 4 * norm) << name_of(sequence);
  }
}

// Parameters to the byte; what autograd keeps, within 5%. Larger than the other tests: small tensors hide behind odds and ends.
TEST(Costs, Memory) {
  auto& memory = CountingAllocator::get();
  Small small;
  small.workload.shape.width = 96, small.workload.shape.layers = 3, small.workload.shape.context = 48;
  const ModelShape shape = small.workload.shape;
  const int64_t tokens = small.workload.batch_size() * shape.context;
  const auto [text, target] = small.workload.batch(0);
  for (const Sequence sequence : sequences) {
    const int64_t before = memory.live_bytes(Tag::parameters);
    std::unique_ptr<ParallelGpt> model;
    {
      const MemoryTag tag(Tag::parameters);
      model = std::make_unique<ParallelGpt>(shape, TensorSplit{world(), sequence}, RandomKeys{});
    }
    EXPECT_EQ(static_cast<double>(memory.live_bytes(Tag::parameters) - before), 4 * parameters_per_rank(shape, world().size()));
    const MemoryTag tag(Tag::activations);
    const auto loss = model->loss(model->forward(text), target);
    const double kept = static_cast<double>(memory.live_bytes(Tag::activations));
    const double predicted = static_cast<double>(shape.layers) * kept_by_block(shape, tokens, world().size(), sequence) + kept_by_ends(shape, tokens, world().size(), sequence);
    EXPECT_NEAR(kept, predicted, 0.05 * predicted) << name_of(sequence);
  }
  const auto dense = small.workload.dense();
  const MemoryTag tag(Tag::activations);
  const auto loss = cross_entropy(dense->forward(text), target);
  EXPECT_NEAR(static_cast<double>(memory.live_bytes(Tag::activations)), kept_by_dense(shape, tokens), 0.05 * kept_by_dense(shape, tokens));
}

// Stages hold their own units only, and together they are the model.
TEST(Units, ARangeHoldsItsPart) {
  Small small;
  const ModelShape shape = small.workload.shape;
  ParallelGpt whole(shape, world());
  const auto tokens = small.workload.batch(0).tokens;
  auto x = tokens;
  int64_t parameters = 0;
  for (const UnitRange range : {UnitRange{0, 2}, UnitRange{2, 3}, UnitRange{3, -1}}) {
    ParallelGpt stage(shape, TensorSplit{world()}, {}, range);
    parameters += parameter_count(stage);
    x = stage.forward(x);
  }
  EXPECT_EQ(parameters, parameter_count(whole));
  EXPECT_TRUE(torch::equal(x, whole.forward(tokens)));
}

}  // namespace
}  // namespace manyranks
