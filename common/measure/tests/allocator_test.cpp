#include "measure/allocator.hpp"

#include <gtest/gtest.h>
#include "launch/torch.hpp"

#include <thread>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

constexpr int64_t KiB = 1024;

torch::Tensor bytes(int64_t n) { return torch::empty({n}, torch::kUInt8); }

class Allocator : public testing::Test {
 protected:
  ~Allocator() override { memory_.set_cap(0); }
  CountingAllocator& memory_ = CountingAllocator::install();
  int64_t before_ = memory_.live_bytes();
};

TEST_F(Allocator, InstallTwiceIsOne) { EXPECT_EQ(&CountingAllocator::install(), &memory_); }

TEST_F(Allocator, CountsExactBytesByTagAndFreesThem) {
  const int64_t parameters = memory_.live_bytes(Tag::parameters), other = memory_.live_bytes(Tag::other);
  {
    const MemoryTag tag(Tag::parameters);
    const auto weights = torch::empty({100, 3}, torch::kFloat32);
    EXPECT_EQ(memory_.live_bytes(Tag::parameters) - parameters, 1200);
    EXPECT_EQ(memory_.live_bytes(Tag::other), other);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.data_ptr()) % 64, 0u);
  }
  EXPECT_EQ(memory_.live_bytes(Tag::parameters), parameters);
  EXPECT_EQ(memory_.live_bytes(), before_);
}

TEST_F(Allocator, ScopesNestAndFreesGoToTheTagOfTheAllocation) {
  torch::Tensor a, b, c;
  const MemoryTag outer(Tag::gradients);
  const int64_t gradients = memory_.live_bytes(Tag::gradients), optimizer = memory_.live_bytes(Tag::optimizer);
  a = bytes(1 * KiB);
  {
    const MemoryTag inner(Tag::optimizer);
    b = bytes(2 * KiB);
    a.reset();  // a gradient, though freed inside the scope of the optimizer
  }
  c = bytes(4 * KiB);
  EXPECT_EQ(memory_.live_bytes(Tag::gradients) - gradients, 4 * KiB);
  EXPECT_EQ(memory_.live_bytes(Tag::optimizer) - optimizer, 2 * KiB);
}

TEST_F(Allocator, TagsBelongToTheThread) {
  const MemoryTag tag(Tag::parameters);
  const int64_t parameters = memory_.live_bytes(Tag::parameters);
  torch::Tensor elsewhere;
  std::thread([&] { elsewhere = bytes(KiB); }).join();
  EXPECT_EQ(memory_.live_bytes(Tag::parameters), parameters);
  EXPECT_EQ(memory_.live_bytes(), before_ + KiB);
}

TEST_F(Allocator, FreesOnAnotherThread) {
  std::vector<torch::Tensor> tensors;
  {
    const MemoryTag tag(Tag::buffers);
    for (int i = 0; i < 64; ++i) tensors.push_back(bytes(KiB));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = t; i < 64; i += 4) tensors[i].reset();
      for (int i = 0; i < 100; ++i) bytes(KiB);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(memory_.live_bytes(), before_);
}

TEST_F(Allocator, PeaksStayUntilReset) {
  memory_.reset_peak();
  const MemoryTag tag(Tag::activations);
  const int64_t activations = memory_.live_bytes(Tag::activations);
  { const auto a = bytes(KiB), b = bytes(2 * KiB); }
  const auto c = bytes(KiB);
  EXPECT_EQ(memory_.peak_bytes() - before_, 3 * KiB);
  EXPECT_EQ(memory_.peak_bytes(Tag::activations) - activations, 3 * KiB);
  memory_.reset_peak();
  EXPECT_EQ(memory_.peak_bytes(), before_ + KiB);
  EXPECT_EQ(memory_.peak_bytes(Tag::activations), activations + KiB);
}

TEST_F(Allocator, BackwardIsSeenUnderTheCallersTag) {
  const auto weights = torch::ones({16, 16}, torch::requires_grad());
  const auto loss = torch::mm(weights, weights).sum();
  const int64_t gradients = memory_.live_bytes(Tag::gradients);
  const MemoryTag tag(Tag::gradients);
  loss.backward();
  EXPECT_GE(memory_.live_bytes(Tag::gradients) - gradients, 16 * 16 * 4);
}

TEST_F(Allocator, CapIsExit69AndNamesTheTensor) {
  memory_.set_cap(static_cast<uint64_t>(before_ + 10 * KiB));
  const MemoryTag tag(Tag::optimizer, "exp_avg of block 3");
  const auto fits = bytes(10 * KiB);  // up to the cap is allowed
  try {
    bytes(2 * KiB);
    FAIL() << "allocated beyond the cap";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::unavailable);
    EXPECT_NE(error.cause.find("optimizer (exp_avg of block 3) asks for 2.0 KiB"), std::string::npos) << error.cause;
    EXPECT_NE(error.cause.find("optimizer 10.0 KiB"), std::string::npos) << error.cause;
  }
  EXPECT_EQ(memory_.live_bytes(), before_ + 10 * KiB) << "a refused request must not be counted";
  memory_.set_cap(0);
  EXPECT_NO_THROW(bytes(2 * KiB));
}

TEST_F(Allocator, CapInsideBackwardKeepsItsExitCode) {
  const auto weights = torch::ones({64, 64}, torch::requires_grad());
  const auto loss = torch::mm(weights, weights).sum();
  memory_.set_cap(static_cast<uint64_t>(memory_.live_bytes() + 64));
  try {
    loss.backward();
    FAIL() << "allocated beyond the cap";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::unavailable);
  }
}

TEST_F(Allocator, RetagMovesTheWholeStorage) {
  const auto tensor = bytes(4 * KiB);
  const int64_t parameters = memory_.live_bytes(Tag::parameters), other = memory_.live_bytes(Tag::other);
  EXPECT_EQ(memory_.retag(tensor.slice(0, 0, 10), Tag::parameters), 4 * KiB);
  EXPECT_EQ(memory_.live_bytes(Tag::parameters), parameters + 4 * KiB);
  EXPECT_EQ(memory_.live_bytes(Tag::other), other - 4 * KiB);
  EXPECT_EQ(memory_.live_bytes(), before_ + 4 * KiB);
}

TEST_F(Allocator, RetagLeavesForeignMemoryAlone) {
  std::vector<float> mine(16);
  EXPECT_EQ(memory_.retag(torch::from_blob(mine.data(), {16}), Tag::parameters), 0);
  EXPECT_EQ(memory_.retag(torch::Tensor(), Tag::parameters), 0);
  EXPECT_EQ(memory_.retag(torch::empty({0}), Tag::parameters), 0);
}

TEST_F(Allocator, NotesMemoryFromElsewhere) {
  const int64_t buffers = memory_.live_bytes(Tag::buffers);
  memory_.note(Tag::buffers, 100);
  EXPECT_EQ(memory_.live_bytes(Tag::buffers), buffers + 100);
  EXPECT_EQ(memory_.live_bytes(), before_ + 100);
  memory_.note(Tag::buffers, -100);
  memory_.set_cap(static_cast<uint64_t>(before_ + 50));
  EXPECT_THROW(memory_.note(Tag::buffers, 100), Error);
  EXPECT_EQ(memory_.live_bytes(), before_);
}

TEST_F(Allocator, EventsTellTheStory) {
  memory_.start_events();
  {
    const MemoryTag tag(Tag::activations);
    const auto a = bytes(KiB);
  }
  const auto events = memory_.stop_events();
  bytes(KiB);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].tag, Tag::activations);
  EXPECT_EQ(events[0].bytes, KiB);
  EXPECT_EQ(events[0].live, before_ + KiB);
  EXPECT_EQ(events[1].bytes, -KiB);
  EXPECT_EQ(events[1].live, before_);
  EXPECT_LE(events[0].at_s, events[1].at_s);
  EXPECT_TRUE(memory_.stop_events().empty());
}

TEST_F(Allocator, EmptyAndResizedTensors) {
  auto tensor = torch::empty({0});
  EXPECT_EQ(memory_.live_bytes(), before_);
  tensor.resize_({256});
  EXPECT_EQ(memory_.live_bytes(), before_ + 1024);
  tensor.reset();
  EXPECT_EQ(memory_.live_bytes(), before_);
}

}  // namespace
}  // namespace manyranks
