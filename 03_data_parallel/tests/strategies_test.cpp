// Every strategy gives the bits of a serial run over the same shards, after 20 steps, for any number of ranks; nearly so where sums are
// made in another order (wires between hosts). Bytes held and bytes sent are those of the formulas.
#include <gtest/gtest.h>

#include <map>

#include "comm/tests/rank_main.hpp"  // process, world
#include "measure/allocator.hpp"     // CountingAllocator
#include "models/model.hpp"
#include "parallel/gradient_hook.hpp"
#include "parallel/replicate.hpp"
#include "parallel/strategy.hpp"
#include "workload.hpp"

namespace manyranks {
namespace {

constexpr int64_t steps = 20;

struct Case {
  std::string model, optimizer;
  std::vector<std::string> strategies;
};

void run(const Case& test) {
  Communicator& world = test::world();
  Options options("test", "");
  Workload workload(options);
  options.quick = true;
  options.batch = 2;
  workload.kind = test.model;
  workload.optimizer = test.optimizer;
  const Reference reference = train_serially(workload, world, steps);
  for (const std::string& kind : test.strategies) {
    auto model = workload.make();
    // Small buckets, so that there are several of them, and parameters that lie across two chunks.
    const auto strategy = make_strategy(kind, world, *model, {workload.optimizer_maker(), {4 << 10, 64 << 10}});
    for (int64_t step = 0; step < steps; ++step) {
      const auto [x, y] = workload.samples(step, world.rank());
      cross_entropy(strategy->forward(x), y).backward();
      strategy->step(workload.learning_rate());
    }
    EXPECT_NO_THROW(expect_same(sums_in_rank_order(world), test.model + " " + test.optimizer + " " + kind + ", parameter", strategy->gather_parameters(), reference.parameters));
  }
}

const std::vector<std::string> all{"naive", "bucketed", "ddp", "horovod", "zero1", "zero2", "zero3"};

TEST(Strategies, ConvnetSgd) { run({"convnet", "sgd", all}); }
TEST(Strategies, ConvnetAdam) { run({"convnet", "adam", all}); }
TEST(Strategies, GptSgd) { run({"gpt", "sgd", all}); }
TEST(Strategies, GptAdam) { run({"gpt", "adam", all}); }

// 11 million parameters: each strategy with one of the optimisers, to keep it in seconds.
TEST(Resnet, Sgd) { run({"resnet18", "sgd", {"ddp", "zero2"}}); }
TEST(Resnet, Adam) { run({"resnet18", "adam", {"zero1", "zero3"}}); }

// A rank has 0, 2 or 3 samples, another number each step; sums of losses, divided by the samples of all. (Never one: a batch of one
// takes another path through LibTorch, whose last bits depend on where in memory the weights lie.)
TEST(Strategies, UnevenAndEmptyShards) {
  Communicator& world = test::world();
  Options options("test", "");
  Workload workload(options);
  options.quick = true;
  options.batch = 3;
  const auto count_of = [&](int64_t step, int rank) { return std::vector<int64_t>{2, 3, 0}[static_cast<size_t>(step + rank) % (world.size() == 1 ? 2 : 3)]; };
  const auto loss_of = [&](const torch::Tensor& output, const torch::Tensor& y) { return cross_entropy(output, y) * static_cast<double>(y.numel()); };
  const auto all_of = [&](int64_t step) {
    int64_t n = 0;
    for (int rank = 0; rank < world.size(); ++rank) n += count_of(step, rank);
    return static_cast<double>(n);
  };
  const auto train = [&](const std::string& kind) {
    auto model = workload.make();
    const bool serial = kind == "serial";
    const auto strategy = make_strategy(serial ? "alone" : kind, world, *model, {workload.optimizer_maker(), {4 << 10, 64 << 10}});
    for (int64_t step = 0; step < 6; ++step) {
      const auto shard = [&](int rank) {
        const auto [x, y] = workload.samples(step, rank);
        return Samples{x.narrow(0, 0, count_of(step, rank)), y.narrow(0, 0, count_of(step, rank))};
      };
      for (int rank = 0; rank < world.size(); ++rank) {  // serially: every rank's shard, added up in rank order
        if (!serial && rank != world.rank()) continue;
        const auto [x, y] = shard(rank);
        if (y.numel() == 0) strategy->follow();
        else loss_of(strategy->forward(x), y).backward();
      }
      strategy->step(workload.learning_rate(), 1.0 / all_of(step));
    }
    return strategy->gather_parameters();
  };
  const auto expected = train("serial");
  for (const std::string& kind : all) EXPECT_NO_THROW(expect_same(sums_in_rank_order(world), kind + ", parameter", train(kind), expected));
}

// Parameters, gradients and optimiser state at the step boundary, against the formulas; and how many bytes of gradients ZeRO-2 has
// at once above its shard.
void check_memory(const std::string& kind, const std::string& model_kind) {
  Communicator& world = test::world();
  auto& memory = CountingAllocator::get();
  Options options("test", "");
  Workload workload(options);
  options.quick = model_kind != "gpt";
  options.batch = 2;
  workload.kind = model_kind;
  const auto held = [&] { return memory.live_bytes(Tag::parameters) + memory.live_bytes(Tag::gradients) + memory.live_bytes(Tag::optimizer); };
  const double n = world.size();
  const std::map<std::string, double> per_parameter{{"ddp", 16}, {"zero1", 8 + 8 / n}, {"zero2", 4 + 12 / n}, {"zero3", 16 / n}};
  const int64_t bucket = 256 << 10, before = held();
  auto model = workload.make();
  const double count = static_cast<double>(parameter_count(*model));
  // Asked each time a gradient is complete, before the strategy takes it away: hooks run in the order of registration.
  const auto parameters = trainable_parameters(*model);
  int64_t largest = 0, most = 0;
  std::vector<std::unique_ptr<GradientHook>> hooks;
  for (const auto& [name, tensor] : parameters) {
    largest = std::max(largest, static_cast<int64_t>(tensor.numel()) * 4);
    hooks.push_back(std::make_unique<GradientHook>(tensor, [&] {
      int64_t live = 0;
      for (const auto& [other, parameter] : parameters) live += parameter.grad().defined() ? static_cast<int64_t>(parameter.grad().nbytes()) : 0;
      most = std::max(most, live);
    }));
  }
  const auto strategy = make_strategy(kind, world, *model, {workload.optimizer_maker(), {bucket, bucket}});
  for (int64_t step = 0; step < 2; ++step) {
    const auto [x, y] = workload.samples(step, world.rank());
    const MemoryTag tag(Tag::activations);
    cross_entropy(strategy->forward(x), y).backward();
    strategy->step(workload.learning_rate());
    const double expected = per_parameter.at(kind) * count;
    EXPECT_NEAR(static_cast<double>(held() - before), expected, 0.02 * expected) << model_kind << ", " << kind << ", after step " << step;
  }
  if (kind == "zero2" || kind == "zero3") {
    EXPECT_GE(most, largest) << "the hooks saw nothing";
    EXPECT_LE(most, largest + bucket) << model_kind << ", " << kind;
    EXPECT_LE(memory.live_bytes(Tag::buffers), bucket + 2 * 4 * world.size()) << model_kind << ", " << kind;
  }
}

TEST(Memory, HeldBytesAreTheFormulas) {
  for (const std::string kind : {"ddp", "zero1", "zero2", "zero3"}) check_memory(kind, "gpt");
  for (const std::string kind : {"zero2", "zero3"}) check_memory(kind, "resnet18");
}

// Exactly, but for the padding of shards: at most N - 1 elements per chunk or unit.
TEST(Strategies, BytesSent) {
  Communicator& world = test::world();
  Options options("test", "");
  Workload workload(options);
  options.batch = 2;
  workload.kind = "gpt";
  const auto probe = workload.make();
  const int64_t count = parameter_count(*probe);
  const double passes = static_cast<double>(count) * 4 * (world.size() - 1) / world.size();
  const std::map<std::string, double> expected{{"alone", 0}, {"bucketed", 2}, {"ddp", 2}, {"zero1", 2}, {"zero2", 2}, {"zero3", 3}};
  const double padding = 4.0 * world.size() * 64;
  for (const auto& [kind, times] : expected) {
    auto model = workload.make();
    const auto strategy = make_strategy(kind, world, *model, {workload.optimizer_maker(), {256 << 10, 1 << 20}});
    for (int64_t step = 0; step < 2; ++step) {
      world.reset_traffic();
      const auto [x, y] = workload.samples(step, world.rank());
      cross_entropy(strategy->forward(x), y).backward();
      strategy->step(workload.learning_rate());
    }
    EXPECT_NEAR(static_cast<double>(strategy->bytes_sent()), times * passes, times > 0 ? padding : 0) << kind;
    world.barrier();
  }
}

}  // namespace
}  // namespace manyranks
