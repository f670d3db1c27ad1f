// Every strategy gives the bits of a serial run over the same shards, after 20 steps, for any number of ranks.
#include <gtest/gtest.h>

#include "comm/tests/rank_main.hpp"  // process, world
#include "measure/verify.hpp"        // expect_equal_bits
#include "models/model.hpp"
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
    EXPECT_NO_THROW(expect_equal_bits(test.model + " " + test.optimizer + " " + kind + ", parameter", strategy->gather_parameters(), reference.parameters));
  }
}

const std::vector<std::string> all{"naive", "bucketed", "ddp", "zero1", "zero2", "zero3"};

TEST(Strategies, ConvnetSgd) { run({"convnet", "sgd", all}); }
TEST(Strategies, ConvnetAdam) { run({"convnet", "adam", all}); }
TEST(Strategies, GptSgd) { run({"gpt", "sgd", all}); }
TEST(Strategies, GptAdam) { run({"gpt", "adam", all}); }

// 11 million parameters: each strategy with one of the optimisers, to keep it in seconds.
TEST(Resnet, Sgd) { run({"resnet18", "sgd", {"ddp", "zero2"}}); }
TEST(Resnet, Adam) { run({"resnet18", "adam", {"zero1", "zero3"}}); }

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
  for (const auto& [kind, times] : expected) {
    auto model = workload.make();
    const auto strategy = make_strategy(kind, world, *model, {workload.optimizer_maker(), {256 << 10, 1 << 20}});
    for (int64_t step = 0; step < 2; ++step) {
      world.reset_traffic();
      const auto [x, y] = workload.samples(step, world.rank());
      cross_entropy(strategy->forward(x), y).backward();
      strategy->step(workload.learning_rate());
    }
    EXPECT_NEAR(static_cast<double>(world.traffic().bytes_sent), times * passes, 0.01 * times * passes) << kind;
    world.barrier();
  }
}

}  // namespace
}  // namespace manyranks
