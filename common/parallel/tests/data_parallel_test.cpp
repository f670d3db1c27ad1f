// Buckets, ZeRO-1/2/3 and Horovod's way against one process that sees every rank's samples: the same bits, because
// nothing but our own sums and elementwise products decides them. The ranks begin with different models, so that
// replicate() has something to do.
#include <gtest/gtest.h>

#include "launch/errors.hpp"
#include "measure/verify.hpp"  // expect_equal_bits
#include "parallel/distributed_optimizer.hpp"
#include "parallel/fully_sharded.hpp"
#include "parallel/gradient_buckets.hpp"
#include "parallel/replicate.hpp"
#include "parallel/tests/toy.hpp"
#include "parallel/zero.hpp"

namespace manyranks {
namespace {

using test::Sample;
using test::Toy;
using test::values_of;
using test::world;
using torch::Tensor;

constexpr int64_t steps = 5;
constexpr double rate = 0.05;

std::unique_ptr<Toy> different_model() { return std::make_unique<Toy>(static_cast<uint64_t>(1000 * world().rank())); }

void backward(Toy& model, int64_t step, int64_t pass = 0) {
  *model.sample = {step, world().rank(), pass};
  model.forward(torch::zeros({1})).sum().backward();
}

double mean(int64_t passes = 1) { return 1.0 / static_cast<double>(world().size() * passes); }

TEST(Buckets, EqualTheSerialRun) {
  for (const int64_t bytes : {16, 200, 1 << 20}) {
    auto model = different_model();
    int sums = 0;
    GradientBuckets buckets(world(), *model, {bytes, bytes}, [&](const GradientBuckets::Bucket& bucket) {
      ++sums;
      return world().all_reduce_async(bucket.gradients);
    });
    const auto optimizer = make_adam()(buckets.parameters(), buckets.gradients());
    for (int64_t step = 0; step < steps; ++step) {
      buckets.zero_grad();
      backward(*model, step);
      buckets.finish();
      optimizer->step(rate, mean());
    }
    EXPECT_NO_THROW(expect_equal_bits(fmt::format("buckets of {} bytes, parameter", bytes), values_of(*model),
                                      test::train_serially(make_adam(), rate, steps)));
    EXPECT_GE(sums, bytes == 16 ? 4 * steps : steps);
    EXPECT_EQ(buckets.size() > 1, bytes < 1 << 20);
  }
}

TEST(Buckets, AccumulateWithoutSync) {
  auto model = different_model();
  GradientBuckets buckets(world(), *model, {64, 256}, [&](const GradientBuckets::Bucket& bucket) {
    return world().all_reduce_async(bucket.gradients);
  });
  const auto optimizer = make_sgd()(buckets.parameters(), buckets.gradients());
  for (int64_t step = 0; step < steps; ++step) {
    buckets.zero_grad();
    for (int64_t pass = 0; pass < 2; ++pass) {
      const GradientBuckets::NoSync no_sync(buckets);
      backward(*model, step, pass);
    }
    backward(*model, step, 2);
    buckets.finish();
    optimizer->step(rate, mean(3));
  }
  EXPECT_NO_THROW(expect_equal_bits("parameter", values_of(*model), test::train_serially(make_sgd(), rate, steps, 3)));
}

TEST(Zero, Stages1And2EqualTheSerialRun) {
  for (const int stage : {1, 2})
    for (const int64_t bytes : {64, 512, 1 << 20}) {
      auto model = different_model();
      ZeroSharded sharded(world(), *model, stage, bytes, make_adam());
      for (int64_t step = 0; step < steps; ++step) {
        backward(*model, step);
        sharded.step(rate, mean());
      }
      const std::string name = fmt::format("stage {}, {} bytes, parameter", stage, bytes);
      EXPECT_NO_THROW(expect_equal_bits(name, values_of(*model), test::train_serially(make_adam(), rate, steps)));
    }
}

TEST(Zero, Stage3EqualsTheSerialRun) {
  for (const int64_t bytes : {64, 1 << 20}) {
    auto model = different_model();
    FullySharded sharded(world(), *model, bytes, make_adam());
    for (int64_t step = 0; step < steps; ++step) {
      *model->sample = {step, world().rank(), 0};
      sharded.forward(torch::zeros({1})).sum().backward();
      sharded.step(rate, mean());
    }
    Toy like(0);  // for the names: which of the values are trained
    const auto all = test::train_serially(make_adam(), rate, steps);
    std::vector<Tensor> expected;
    size_t i = 0;
    for (const auto& item : like.named_parameters()) {
      if (item.value().requires_grad()) expected.push_back(all[i]);
      ++i;
    }
    EXPECT_NO_THROW(expect_equal_bits(fmt::format("{} bytes, parameter", bytes), sharded.gather_all(), expected));
    for (const auto& item : model->named_parameters()) {
      if (item.value().requires_grad()) continue;
      EXPECT_NO_THROW(expect_equal_bits(item.key(), item.value(), like.named_parameters()[item.key()]));
    }
  }
}

// A backward pass too many in Horovod's way once added a rank's own gradient to the sum of all, silently.
struct Horovod {
  explicit Horovod(FusionOptions options)
      : model(different_model()),
        flat((replicate(world(), *model), *model)),
        optimizer(world(), flat, make_sgd()(flat.parameters(), flat.gradients()), options) {}
  std::unique_ptr<Toy> model;
  FlatParameters flat;
  DistributedOptimizer optimizer;
};

TEST(Horovod, EqualsTheSerialRun) {
  for (const int64_t fusion_bytes : {16, 300, 1 << 20}) {
    Horovod horovod({.cycle_ms = 0.1, .fusion_bytes = fusion_bytes});
    for (int64_t step = 0; step < steps; ++step) {
      horovod.flat.zero_grad();
      backward(*horovod.model, step);
      horovod.optimizer.step(rate, mean());
    }
    EXPECT_NO_THROW(expect_equal_bits(fmt::format("{} bytes, parameter", fusion_bytes), values_of(*horovod.model),
                                      test::train_serially(make_sgd(), rate, steps)));
  }
}

TEST(Horovod, AccumulatesWhereItWasTold) {
  Horovod horovod({.cycle_ms = 0.1, .backward_passes_per_step = 2});
  for (int64_t step = 0; step < steps; ++step) {
    horovod.flat.zero_grad();
    for (int64_t pass = 0; pass < 2; ++pass) backward(*horovod.model, step, pass);
    horovod.optimizer.step(rate, mean(2));
  }
  EXPECT_NO_THROW(
      expect_equal_bits("parameter", values_of(*horovod.model), test::train_serially(make_sgd(), rate, steps, 2)));
}

TEST(Horovod, SecondBackwardIsAnError) {
  Horovod horovod({.cycle_ms = 0.1});
  backward(*horovod.model, 0);
  try {
    backward(*horovod.model, 0, 1);
    ADD_FAILURE() << "the gradients of this rank were added to a sum over all ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::usage);
    EXPECT_NE(error.cause.find("gradient 2 of "), std::string::npos) << error.cause;
    EXPECT_NE(error.hint.find("backward_passes_per_step"), std::string::npos) << error.hint;
  }
  horovod.optimizer.step(rate, mean());  // all ranks meet again, and the next step is a step like any other
  horovod.flat.zero_grad();
  EXPECT_NO_THROW(backward(*horovod.model, 1));
  horovod.optimizer.step(rate, mean());
}

TEST(Replicate, EverythingIsRankZeros) {
  auto model = different_model();
  replicate(world(), *model);
  const Toy first(0);
  EXPECT_NO_THROW(expect_equal_bits("parameter", values_of(*model), values_of(first)));
  EXPECT_EQ(model->count.item<int64_t>(), 0);
  EXPECT_TRUE(torch::equal(model->flags, first.flags));
}

TEST(Replicate, BuffersWithGapsAndOtherLayouts) {
  struct Module : torch::nn::Module {
    explicit Module(uint64_t seed) {
      gaps = register_buffer("gaps", test::drawn({4, 6}, seed).slice(1, 0, 6, 2));
      last = register_parameter("last", test::drawn({2, 3, 4, 4}, seed).contiguous(torch::MemoryFormat::ChannelsLast),
                                false);
      none = register_buffer("none", torch::empty({0, 3}));
    }
    Tensor gaps, last, none;
  };
  Module module(static_cast<uint64_t>(world().rank())), first(0);
  replicate(world(), module);
  EXPECT_TRUE(torch::equal(module.gaps, first.gaps));
  EXPECT_TRUE(torch::equal(module.last, first.last));
}

// The last rank's model differs in one thing; the error must name it.
void expect_named(const std::string& words, const std::function<void(torch::nn::Module& module, bool odd)>& fill) {
  if (world().size() == 1) return;  // nobody to differ from
  torch::nn::Module module;
  fill(module, world().rank() == world().size() - 1);
  try {
    replicate(world(), module);
    ADD_FAILURE() << "taken for the same: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::disagree);
    EXPECT_NE(error.cause.find(words), std::string::npos) << error.cause;
  }
}

TEST(Replicate, DifferencesAreNamed) {
  const auto weight = [](torch::nn::Module& m, std::vector<int64_t> sizes, bool trains = true,
                         torch::Dtype dtype = torch::kFloat) {
    m.register_parameter("weight", torch::zeros(sizes, dtype), trains);
  };
  expect_named("weight Float [4, 3]", [&](auto& m, bool odd) { weight(m, {odd ? 3 : 4, odd ? 4 : 3}); });
  expect_named("weight Float [4, 3], frozen", [&](auto& m, bool odd) { weight(m, {odd ? 3 : 4, odd ? 4 : 3}, false); });
  expect_named("weight Float [4], frozen", [&](auto& m, bool odd) { weight(m, {4}, !odd); });
  expect_named("weight Double [4]",
               [&](auto& m, bool odd) { weight(m, {4}, true, odd ? torch::kDouble : torch::kFloat); });
  expect_named("there is nothing more", [&](auto& m, bool odd) {
    weight(m, {4});
    if (odd) m.register_parameter("more", torch::zeros({2}), false);
  });
  expect_named("parameters, rank ", [&](auto& m, bool odd) {
    weight(m, {4});
    if (odd) m.register_parameter("more", torch::zeros({2}), false);
  });
  expect_named("buffer 0 is mean Float [5]", [&](auto& m, bool odd) {
    weight(m, {4});
    m.register_buffer("mean", torch::zeros({odd ? 5 : 4}));
  });
  expect_named("buffer 0 is renamed", [&](auto& m, bool odd) {
    weight(m, {4});
    m.register_buffer(odd ? "renamed" : "mean", torch::zeros({4}));
  });
  expect_named("strides", [&](auto& m, bool odd) {
    const auto value = torch::zeros({2, 3, 4, 4});
    m.register_parameter("weight", odd ? value.contiguous(torch::MemoryFormat::ChannelsLast) : value);
  });
}

}  // namespace
}  // namespace manyranks
