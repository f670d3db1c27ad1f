#include "generate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launch/errors.hpp"

namespace manyranks::pipeline {

static Schedule empty(std::string name, int stages, int microbatches, int chunks = 1) {
  if (stages < 1 || microbatches < 1 || chunks < 1)
    throw usage_error("schedule " + name, fmt::format("{} stages, {} microbatches, {} chunks: each must be 1 or more", stages, microbatches, chunks));
  return {std::move(name), stages, microbatches, chunks, std::vector<std::vector<Action>>(stages)};
}

Schedule with_messages(Schedule schedule) {
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::vector<Action> all;
    const auto add_message = [&](Kind kind, const Action& of) {
      const Action message{kind, of.microbatch, of.chunk};
      if (schedule.peer(stage, message)) all.push_back(message);
    };
    for (const Action& action : schedule.actions[stage]) {
      if (action.kind == Kind::forward) {
        add_message(Kind::receive_activation, action);
        all.push_back(action);
        add_message(Kind::send_activation, action);
      } else if (action.kind == Kind::backward_weight) {
        all.push_back(action);
      } else {
        add_message(Kind::receive_gradient, action);
        all.push_back(action);
        add_message(Kind::send_gradient, action);
      }
    }
    schedule.actions[stage] = std::move(all);
  }
  return schedule;
}

Schedule naive_schedule(int stages, int microbatches) {
  Schedule schedule = empty("naive", stages, microbatches);
  for (auto& actions : schedule.actions)
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      actions.push_back({Kind::forward, microbatch});
      actions.push_back({Kind::backward, microbatch});
    }
  return with_messages(std::move(schedule));
}

Schedule gpipe_schedule(int stages, int microbatches) {
  Schedule schedule = empty("gpipe", stages, microbatches);
  for (auto& actions : schedule.actions) {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) actions.push_back({Kind::forward, microbatch});
    // Backward in the same order, not reversed: weight gradients then add up in the order of the serial run.
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) actions.push_back({Kind::backward, microbatch});
  }
  return with_messages(std::move(schedule));
}

Schedule one_f_one_b_schedule(int stages, int microbatches) {
  Schedule schedule = empty("1f1b", stages, microbatches);
  for (int stage = 0; stage < stages; ++stage) {
    auto& actions = schedule.actions[stage];
    // Warm-up: as many forwards as it takes until this stage's first gradient can be back. Then each backward frees what the
    // next forward needs.
    const int warm_up = std::min(microbatches, stages - 1 - stage);
    for (int microbatch = 0; microbatch < warm_up; ++microbatch) actions.push_back({Kind::forward, microbatch});
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      if (warm_up + microbatch < microbatches) actions.push_back({Kind::forward, warm_up + microbatch});
      actions.push_back({Kind::backward, microbatch});
    }
  }
  return with_messages(std::move(schedule));
}

Schedule interleaved_schedule(int stages, int microbatches, int chunks) {
  Schedule schedule = empty("interleaved", stages, microbatches, chunks);
  // Microbatches go in groups of p: a group passes chunk 0, then chunk 1, ...: when its first one has gone round, rank 0 is just
  // done with its last one. If p does not divide m, the last group is filled up with microbatches that are left out again at the
  // end: leaving whole microbatches out of a schedule that cannot deadlock gives one that cannot either.
  const int padded = (microbatches + stages - 1) / stages * stages;
  std::vector<Action> forward, backward;
  for (int group = 0; group < padded; group += stages)
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int microbatch = group; microbatch < group + stages; ++microbatch) {
        forward.push_back({Kind::forward, microbatch, chunk});
        backward.push_back({Kind::backward, microbatch, chunks - 1 - chunk});
      }
  const int total = padded * chunks;
  for (int stage = 0; stage < stages; ++stage) {
    const int warm_up = chunks == 1 ? std::min(total, stages - 1 - stage) : std::min(total, 2 * (stages - 1 - stage) + (chunks - 1) * stages);
    auto& actions = schedule.actions[stage];
    const auto add = [&](const Action& action) {
      if (action.microbatch < microbatches) actions.push_back(action);
    };
    for (int i = 0; i < warm_up; ++i) add(forward[i]);
    for (int i = 0; i < total; ++i) {
      if (warm_up + i < total) add(forward[warm_up + i]);
      add(backward[i]);
    }
  }
  return with_messages(std::move(schedule));
}

Schedule zero_bubble_schedule(int stages, int microbatches) {
  Schedule schedule = empty("zb-h1", stages, microbatches);
  for (int stage = 0; stage < stages; ++stage) {
    auto& actions = schedule.actions[stage];
    int forwards = 0, weights = 0;
    while (forwards < std::min(microbatches, stages - stage)) actions.push_back({Kind::forward, forwards++});
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      actions.push_back({Kind::backward_input, microbatch});
      // Weight gradients lag by `stage` microbatches: later stages put off more, so that the gradients of inputs reach the first
      // stage sooner, and have more left to do when the pipeline drains. Each stage then holds at most p activations.
      if (microbatch >= stage) actions.push_back({Kind::backward_weight, weights++});
      if (forwards < microbatches) actions.push_back({Kind::forward, forwards++});
    }
    while (weights < microbatches) actions.push_back({Kind::backward_weight, weights++});
  }
  return with_messages(std::move(schedule));
}

std::vector<std::string> schedule_names() { return {"naive", "gpipe", "1f1b", "interleaved", "zb-h1"}; }

Schedule generate(const std::string& name, int stages, int microbatches, int chunks) {
  if (name == "interleaved") return interleaved_schedule(stages, microbatches, chunks);
  if (chunks != 1) throw usage_error("schedule " + name, fmt::format("{} chunks: only the interleaved schedule has more than 1", chunks));
  if (name == "naive") return naive_schedule(stages, microbatches);
  if (name == "gpipe") return gpipe_schedule(stages, microbatches);
  if (name == "1f1b") return one_f_one_b_schedule(stages, microbatches);
  if (name == "zb-h1") return zero_bubble_schedule(stages, microbatches);
  throw usage_error("schedule " + name, "no such schedule", fmt::format("{}", fmt::join(schedule_names(), ", ")));
}

}  // namespace manyranks::pipeline
