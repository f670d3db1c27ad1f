// The stopwatch and the judge that all lessons of this chapter rely on.
#include "workload.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "comm/tests/rank_main.hpp"  // test::process
#include "data/shapes.hpp"           // Shapes
#include "models/memory_format.hpp"  // to_channels_last

namespace manyranks {
namespace {

LoaderOptions loading(int64_t batch, int workers) {
  LoaderOptions options;
  options.batch = batch, options.workers = workers;
  return options;
}

TEST(Batches, AreFullAndGoOnEpochAfterEpoch) {
  const auto data = std::make_shared<Shapes>(Split::train, 32, 1, 10);
  Batches batches(data, loading(4, 1), 1);
  const auto epoch = [&] {  // two full batches; the two samples left over are dropped
    std::vector<torch::Tensor> images;
    for (int i = 0; i < 2; ++i) {
      const auto batch = batches.next();
      EXPECT_EQ(batch.images.sizes(), (torch::IntArrayRef{4, 3, 32, 32}));
      images.push_back(batch.images.clone());
    }
    const auto all = torch::cat(images);
    for (int64_t i = 0; i < 8; ++i)
      for (int64_t j = 0; j < i; ++j) EXPECT_FALSE(torch::equal(all[i], all[j])) << "a sample twice in one epoch";
    return all;
  };
  const auto first = epoch(), second = epoch();
  EXPECT_FALSE(torch::equal(first, second)) << "every epoch has its own order";
  Batches again(data, loading(4, 0), 1);
  EXPECT_TRUE(torch::equal(again.next().images, first.narrow(0, 0, 4))) << "and the same one in every run, with or without workers";
  batches.pause();
  EXPECT_FALSE(torch::equal(epoch(), second)) << "after a pause, another epoch";
  EXPECT_GT(batches.waited_s(), 0);
}

TEST(Batches, RefuseDataThatFillNone) {
  EXPECT_THROW(Batches(std::make_shared<Shapes>(Split::train, 32, 1, 3), loading(4, 0), 1), Error);
}

TEST(ByTurns, TakesTurnsAndTellsWhatTookHowLong) {
  const auto data = std::make_shared<Shapes>(Split::train, 32, 1, 16);
  Batches fast_batches(data, loading(2, 0), 1), slow_batches(data, loading(4, 0), 1);
  std::string order;
  const auto step = [&](char name, Batches& batches, int ms) {
    return [&order, name, &batches, ms] {
      batches.next();
      order += name;
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    };
  };
  const std::vector<Variant> variants{{"fast", &fast_batches, 2, step('f', fast_batches, 2)}, {"slow", &slow_batches, 4, step('s', slow_batches, 20)}};
  const auto speeds = by_turns(test::process(), variants, 2, 8);
  // Three to warm up, then 8 samples: four steps of 2 or two steps of 4; twice.
  EXPECT_EQ(order, "fffffffsssssfffffffsssss");
  ASSERT_EQ(speeds.size(), 2U);
  EXPECT_EQ(speeds[1].step.samples.size(), 2U);
  EXPECT_GE(speeds[0].step.median, 2e-3);  // what was slept is the least that it can be
  EXPECT_GE(speeds[1].step.median, 20e-3);
  EXPECT_DOUBLE_EQ(speeds[1].samples_per_s, 4 / speeds[1].step.median);
  for (const Speed& speed : speeds) {
    EXPECT_GT(speed.data_share, 0);
    EXPECT_LT(speed.data_share, 1);
    EXPECT_GE(speed.busy, 0);
  }
}

TEST(ExpectSameTraining, AcceptsWithinItsLimitsAndNothingElse) {
  torch::manual_seed(1);
  auto model = make_model("mlp", usual_shape("mlp"));
  std::vector<torch::Tensor> rows;
  for (const auto& parameter : model->parameters()) rows.push_back(parameter.detach().reshape({-1}).to(torch::kDouble));
  const auto now = torch::cat(rows), updates = torch::full_like(now, 1e-3);
  const auto gradient = torch::randn({1000}, torch::kDouble);
  const Reference reference{{{2.0, 1.0}, gradient}, now - updates, updates};
  const Training same{{2.0, 1.0}, gradient}, close{{2.0, 1.0 + 1e-6}, gradient}, wrong{{2.0, 1.01}, gradient}, turned{{2.0, 1.0}, gradient * 1.01};
  const auto check = [&](const Training& training, const Reference& against, Difference limit) { expect_same_training("x", training, *model, against, limit); };

  EXPECT_NO_THROW(check(same, reference, {0, 0, 1e-9}));
  EXPECT_NO_THROW(check(close, reference, {1e-5, 0, 1e-9}));
  EXPECT_THROW(check(close, reference, {0, 0, 1e-9}), Error);
  EXPECT_THROW(check(turned, reference, {0, 1e-4, 1e-9}), Error);
  EXPECT_THROW(check(wrong, reference, {1e-5, 0, 1e-9}), Error);
  // Losses right, but the weights have moved twice as far, or not at all: what a comparison of weights alone would hardly see.
  const Reference twice{same, now - 2 * updates, updates}, none{same, now, updates};
  EXPECT_THROW(check(same, twice, {1e-5, 0, 0.9}), Error);
  EXPECT_THROW(check(same, none, {1e-5, 0, 0.9}), Error);
}

TEST(ChannelsLast, KeepsTheNumbersAndMovesThem) {
  torch::manual_seed(1);
  ModelShape shape = usual_shape("convnet");
  shape.channels = 3;  // one channel lies the same way in both formats
  auto model = make_model("convnet", shape);
  std::vector<torch::Tensor> before;
  for (const auto& parameter : model->parameters()) before.push_back(parameter.detach().clone());
  to_channels_last(*model);
  int moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const auto parameter = model->parameters()[i];
    EXPECT_TRUE(torch::equal(parameter, before[i]));
    EXPECT_TRUE(parameter.requires_grad());
    moved += parameter.dim() == 4 && parameter.is_contiguous(torch::MemoryFormat::ChannelsLast) && !parameter.is_contiguous();
  }
  EXPECT_EQ(moved, 2) << "both convolutions, and nothing else has four dimensions";
}

}  // namespace
}  // namespace manyranks
