// Is a schedule sound? Asked before it runs, because a wrong one hangs or trains on wrong gradients.
//
//   const auto findings = check(schedule, {.buffers = 1});
//   // stage 1, action 4: forward of microbatch 2: its input was not received before
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "schedule.hpp"

namespace manyranks::pipeline {

struct Finding {
  int stage = 0;
  int position = 0;  // in the stage's list, from 0; its length for something that is missing altogether
  Action action;
  std::string cause;
};
std::string to_string(const Finding& finding);  // "stage 1, action 4: forward of microbatch 2: ..."

struct Limits {
  // Messages that a channel (sender, receiver, activation or gradient) holds before a send waits for its receiver. 0: a send ends
  // only when it is received (a rendezvous).
  int buffers = 1;
  std::optional<int> peak_live;  // no stage may hold more (microbatch, chunk) pairs at once
};

// Four things, each naming the action:
//   1. every microbatch passes every virtual stage exactly once, forward and backward (whole, or as input and weight);
//   2. every action finds what it needs: its input, its forward pass, its gradient;
//   3. messages arrive in the order in which they are received (NCCL knows no tags), and nobody waits for ever;
//   4. activations fit the limit.
// An empty list means that the schedule is sound.
std::vector<Finding> check(const Schedule& schedule, const Limits& limits = {});

// Throws a data error (exit 65) with the first finding and how many there are.
void expect_sound(const Schedule& schedule, const Limits& limits = {});

// The fewest buffers per channel that the schedule runs with; nothing if no number helps.
std::optional<int> fewest_buffers(const Schedule& schedule);

}  // namespace manyranks::pipeline
