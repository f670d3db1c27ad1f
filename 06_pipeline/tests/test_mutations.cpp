// A broken schedule is caught before it runs, and the finding names the action.
#include <gtest/gtest.h>

#include "check.hpp"
#include "generate.hpp"
#include "launch/errors.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;

static std::vector<Schedule> samples() {
  return {naive_schedule(3, 4), gpipe_schedule(3, 4), one_f_one_b_schedule(4, 6), interleaved_schedule(3, 6, 2), interleaved_schedule(2, 5, 3), zero_bubble_schedule(4, 6),
          interleaved_schedule(1, 3, 2)};
}
static const Limits roomy{.buffers = 8, .peak_live = {}};

// Some finding is about this stage and this action.
static bool names(const std::vector<Finding>& findings, int stage, const Action& action) {
  for (const Finding& finding : findings)
    if (finding.stage == stage && finding.action == action) return true;
  return false;
}

template <class Visit>
static void for_each_action(const Schedule& schedule, Visit visit) {
  for (int stage = 0; stage < schedule.stages; ++stage)
    for (size_t i = 0; i < schedule.actions[stage].size(); ++i) visit(stage, i);
}

TEST(Mutations, the_samples_themselves_are_sound) {
  for (const Schedule& schedule : samples()) EXPECT_TRUE(check(schedule, roomy).empty()) << schedule.name;
}

TEST(Mutations, a_dropped_action_is_named) {
  for (const Schedule& schedule : samples())
    for_each_action(schedule, [&](int stage, size_t i) {
      Schedule broken = schedule;
      const Action dropped = schedule.actions[stage][i];
      broken.actions[stage].erase(broken.actions[stage].begin() + static_cast<long>(i));
      EXPECT_TRUE(names(check(broken, roomy), stage, dropped)) << schedule.name << ": dropped " << to_string(dropped) << " on stage " << stage;
    });
}

TEST(Mutations, a_dropped_receive_also_names_who_needed_it) {
  Schedule broken = gpipe_schedule(2, 3);
  auto& actions = broken.actions[1];
  ASSERT_EQ(actions[2], (Action{Kind::receive_activation, 1}));
  actions.erase(actions.begin() + 2);
  const auto findings = check(broken, roomy);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(to_string(findings.front()), "stage 1, action 2: forward of microbatch 1: its input was not received before");
}

TEST(Mutations, a_duplicated_action_is_named) {
  for (const Schedule& schedule : samples())
    for_each_action(schedule, [&](int stage, size_t i) {
      Schedule broken = schedule;
      const Action action = schedule.actions[stage][i];
      broken.actions[stage].push_back(action);
      const auto findings = check(broken, roomy);
      EXPECT_TRUE(names(findings, stage, action)) << schedule.name << ": twice " << to_string(action);
    });
}

static bool comes_before(Kind a, Kind b) {
  const bool gradient = b == Kind::backward || b == Kind::backward_input;
  return (a == Kind::receive_activation && b == Kind::forward) || (a == Kind::forward && (b == Kind::send_activation || gradient)) ||
         (a == Kind::receive_gradient && gradient) || ((a == Kind::backward || a == Kind::backward_input) && b == Kind::send_gradient) ||
         (a == Kind::backward_input && b == Kind::backward_weight);
}

TEST(Mutations, a_swapped_pair_is_caught) {
  // Two actions of which the second needs the first; and two messages of one channel that change places.
  int swapped = 0;
  for (const Schedule& schedule : samples())
    for_each_action(schedule, [&](int stage, size_t i) {
      const auto& actions = schedule.actions[stage];
      for (size_t j = i + 1; j < actions.size(); ++j) {
        const Action a = actions[i], b = actions[j];
        const bool needs = a.microbatch == b.microbatch && a.chunk == b.chunk && comes_before(a.kind, b.kind);
        const bool same_channel = a.kind == b.kind && !is_compute(a.kind) && a.microbatch != b.microbatch;
        if (!needs && !same_channel) continue;
        Schedule broken = schedule;
        std::swap(broken.actions[stage][i], broken.actions[stage][j]);
        ++swapped;
        EXPECT_FALSE(check(broken, roomy).empty()) << schedule.name << " stage " << stage << ": " << to_string(a) << " <-> " << to_string(b);
      }
    });
  EXPECT_GT(swapped, 1000);
}

TEST(Mutations, an_action_on_the_wrong_stage_or_microbatch_is_named) {
  Schedule broken = one_f_one_b_schedule(3, 4);
  broken.actions[0].insert(broken.actions[0].begin(), Action{Kind::receive_activation, 0});
  EXPECT_TRUE(names(check(broken, roomy), 0, {Kind::receive_activation, 0}));
  broken = one_f_one_b_schedule(3, 4);
  broken.actions[1].push_back({Kind::forward, 4});
  EXPECT_TRUE(names(check(broken, roomy), 1, {Kind::forward, 4}));
  broken = one_f_one_b_schedule(3, 4);
  broken.actions[1].push_back({Kind::backward_weight, 0});
  EXPECT_TRUE(names(check(broken, roomy), 1, {Kind::backward_weight, 0}));
}

TEST(Mutations, a_deadlock_names_the_cycle) {
  // A rendezvous (no buffers): stage 0 sends the activation of microbatch 1 while stage 1 sends the gradient of microbatch 0.
  const auto findings = check(one_f_one_b_schedule(2, 3), {.buffers = 0, .peak_live = {}});
  ASSERT_EQ(findings.size(), 1u);
  const std::string text = to_string(findings.front());
  EXPECT_NE(text.find("deadlock with 0 buffer(s)"), std::string::npos) << text;
  EXPECT_NE(text.find("stage 0 waits in action"), std::string::npos) << text;
  EXPECT_NE(text.find("send_gradient of microbatch 0"), std::string::npos) << text;
  EXPECT_TRUE(check(one_f_one_b_schedule(2, 3), {.buffers = 1, .peak_live = {}}).empty());
  EXPECT_EQ(fewest_buffers(one_f_one_b_schedule(2, 3)), 1);
  EXPECT_EQ(fewest_buffers(gpipe_schedule(4, 8)), 0);
}

TEST(Mutations, two_stages_that_both_receive_first_are_caught) {
  // Backward of microbatch 0 pulled before the forward that its gradient comes from: stage 0 waits for stage 1, which waits for stage 0.
  Schedule broken = naive_schedule(2, 2);
  auto& actions = broken.actions[0];  // F0 send0 receive_gradient0 B0 F1 send1 ...
  std::swap(actions[1], actions[2]);
  const auto findings = check(broken, roomy);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.front().action, (Action{Kind::receive_gradient, 0}));
  EXPECT_NE(findings.front().cause.find("stage 1 waits in action 0 (receive_activation of microbatch 0)"), std::string::npos) << findings.front().cause;
}

TEST(Mutations, too_many_activations_are_named) {
  const auto findings = check(gpipe_schedule(2, 5), {.buffers = 1, .peak_live = 3});
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].cause, "holds 5 activations here, the limit is 3");
  EXPECT_EQ(findings[0].action, (Action{Kind::forward, 4}));
}

TEST(Mutations, expect_sound_is_exit_65) {
  Schedule broken = gpipe_schedule(2, 3);
  broken.actions[1].pop_back();
  try {
    expect_sound(broken);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::data);
    EXPECT_NE(error.cause.find("send_gradient of microbatch 2"), std::string::npos) << error.cause;
  }
}
