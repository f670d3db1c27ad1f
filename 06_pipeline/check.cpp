#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "count.hpp"  // peak_live
#include "launch/errors.hpp"

namespace manyranks::pipeline {

std::string to_string(const Finding& finding) {
  return fmt::format("stage {}, action {}: {}: {}", finding.stage, finding.position, to_string(finding.action), finding.cause);
}

namespace {

// Points 1 and 2, for one stage: walks its list and remembers what is done.
class StageCheck {
 public:
  StageCheck(const Schedule& schedule, int stage, std::vector<Finding>& findings)
      : schedule_(schedule), stage_(stage), findings_(findings), first_(all_kinds.size() * schedule.chunks * schedule.microbatches, -1) {}

  void run() {
    const auto& actions = schedule_.actions[stage_];
    for (position_ = 0; position_ < static_cast<int>(actions.size()); ++position_) visit(actions[position_]);
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk)
      for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) look_for_missing(microbatch, chunk);
  }

 private:
  int& first(Kind kind, const Action& of) {
    return first_[(static_cast<size_t>(kind) * schedule_.chunks + of.chunk) * schedule_.microbatches + of.microbatch];
  }
  bool done(Kind kind, const Action& of) { return first(kind, of) >= 0; }
  bool gradient_done(const Action& of) { return done(Kind::backward, of) || done(Kind::backward_input, of); }
  void report(const Action& action, std::string cause) { findings_.push_back({stage_, position_, action, std::move(cause)}); }
  void need(bool there, const Action& action, const char* cause) {
    if (!there) report(action, cause);
  }

  void visit(const Action& action) {
    if (action.microbatch < 0 || action.microbatch >= schedule_.microbatches || action.chunk < 0 || action.chunk >= schedule_.chunks)
      return report(action, "no such microbatch or chunk");
    if (done(action.kind, action)) return report(action, fmt::format("done before, as action {}", first(action.kind, action)));
    const int g = schedule_.virtual_stage(stage_, action.chunk);
    const bool alone = schedule_.stages == 1;  // chunks on one stage hand over in memory
    switch (action.kind) {
      case Kind::forward:
        if (g > 0 && alone) need(done(Kind::forward, {Kind::forward, action.microbatch, action.chunk - 1}), action, "the chunk before has not done it yet");
        if (g > 0 && !alone) need(done(Kind::receive_activation, action), action, "its input was not received before");
        break;
      case Kind::backward:
      case Kind::backward_input:
        need(done(Kind::forward, action), action, "its forward pass was not done before");
        need(!gradient_done(action), action, "a whole backward pass and a split one");
        if (g + 1 < schedule_.virtual_stages() && alone)
          need(gradient_done({Kind::backward, action.microbatch, action.chunk + 1}), action, "the chunk behind has not done it yet");
        if (g + 1 < schedule_.virtual_stages() && !alone)
          need(done(Kind::receive_gradient, action), action, "the gradient of its output was not received before");
        break;
      case Kind::backward_weight: need(done(Kind::backward_input, action), action, "its backward_input was not done before"); break;
      default:
        if (!schedule_.peer(stage_, action)) return report(action, "there is no stage on the other end");
        if (action.kind == Kind::send_activation) need(done(Kind::forward, action), action, "there is nothing to send before its forward pass");
        if (action.kind == Kind::send_gradient) need(gradient_done(action), action, "there is nothing to send before its backward pass");
    }
    first(action.kind, action) = position_;
  }

  void look_for_missing(int microbatch, int chunk) {
    const Action any{Kind::forward, microbatch, chunk};
    const auto require = [&](Kind kind, bool there) {
      if (!there) report({kind, microbatch, chunk}, "missing");
    };
    require(Kind::forward, done(Kind::forward, any));
    require(done(Kind::backward_weight, any) ? Kind::backward_input : Kind::backward, gradient_done(any));
    if (done(Kind::backward_input, any)) require(Kind::backward_weight, done(Kind::backward_weight, any));
    for (Kind kind : {Kind::receive_activation, Kind::send_activation, Kind::receive_gradient, Kind::send_gradient})
      if (schedule_.peer(stage_, {kind, microbatch, chunk})) require(kind, done(kind, any));
  }

  const Schedule& schedule_;
  int stage_, position_ = 0;
  std::vector<Finding>& findings_;
  std::vector<int> first_;  // (kind, chunk, microbatch) -> position, -1: not yet
};

// Point 3: runs the lists with nothing but messages. A send posts its message when its stage reaches it, and lets the stage go on
// once no more than `buffers` messages of its channel are waiting to be received.
class Simulation {
 public:
  Simulation(const Schedule& schedule, int buffers) : schedule_(schedule), buffers_(buffers), position_(schedule.stages, 0), posted_(schedule.stages, false) {}

  std::vector<Finding> run() {
    do {
      changed_ = false;
      for (int stage = 0; stage < schedule_.stages && findings_.empty(); ++stage)
        while (!finished(stage) && step(stage)) changed_ = true;
    } while (changed_ && findings_.empty());
    if (findings_.empty())
      for (int stage = 0; stage < schedule_.stages; ++stage)
        if (!finished(stage)) {
          report_waiting(stage);
          break;
        }
    return findings_;
  }

 private:
  struct Message {
    int virtual_stage, microbatch;
    bool operator==(const Message&) const = default;
  };
  struct Channel {
    std::vector<Message> sent;
    size_t received = 0;
  };
  const Action& current(int stage) const { return schedule_.actions[stage][position_[stage]]; }
  bool finished(int stage) const { return position_[stage] >= static_cast<int>(schedule_.actions[stage].size()); }

  // True if the stage went on to its next action.
  bool step(int stage) {
    const Action& action = current(stage);
    const auto peer = schedule_.peer(stage, action);
    if (peer && is_send(action.kind)) {
      Channel& channel = channels_[{stage, peer->stage, carries_activation(action.kind)}];
      if (!posted_[stage]) {
        channel.sent.push_back({schedule_.virtual_stage(peer->stage, peer->chunk), action.microbatch});
        posted_[stage] = changed_ = true;
      }
      if (channel.sent.size() > channel.received + buffers_) return false;
      posted_[stage] = false;
    } else if (peer) {
      Channel& channel = channels_[{peer->stage, stage, carries_activation(action.kind)}];
      if (channel.received == channel.sent.size()) return false;
      const Message wanted{schedule_.virtual_stage(stage, action.chunk), action.microbatch}, next = channel.sent[channel.received];
      if (!(wanted == next)) {
        const auto place = schedule_.place(next.virtual_stage);
        findings_.push_back({stage, position_[stage], action,
                             fmt::format("the next message from stage {} is the one of microbatch {}{}", peer->stage, next.microbatch,
                                         place.chunk != action.chunk ? fmt::format(" for chunk {}", place.chunk) : "")});
        return false;
      }
      ++channel.received;
    }
    ++position_[stage];
    return true;
  }

  // Follows who waits for whom until it comes round or ends at a stage that has finished.
  void report_waiting(int stage) {
    std::vector<int> path;
    while (!finished(stage) && std::find(path.begin(), path.end(), stage) == path.end()) {
      path.push_back(stage);
      stage = schedule_.peer(stage, current(stage))->stage;
    }
    std::string text;
    if (finished(stage)) {
      text = fmt::format("waits for ever: stage {} has finished without the other end", stage);
      path = {path.back()};
    } else {
      path.erase(path.begin(), std::find(path.begin(), path.end(), stage));
      text = fmt::format("deadlock with {} buffer(s) per channel", buffers_);
      for (size_t i = 0; i < path.size(); ++i) {
        const int next = path[(i + 1) % path.size()];
        text += fmt::format("{} stage {} waits in action {} ({}) for stage {}", i == 0 ? ":" : ",", path[i], position_[path[i]], to_string(current(path[i])), next);
      }
    }
    findings_.push_back({path.front(), position_[path.front()], current(path.front()), text});
  }

  const Schedule& schedule_;
  size_t buffers_;
  std::vector<int> position_;
  std::vector<bool> posted_;
  bool changed_ = false;
  std::map<std::tuple<int, int, bool>, Channel> channels_;  // (from, to, activation?)
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check(const Schedule& schedule, const Limits& limits) {
  std::vector<Finding> findings;
  if (schedule.stages < 1 || schedule.actions.size() != static_cast<size_t>(schedule.stages))
    return {{0, 0, {}, fmt::format("{} stages, but {} lists of actions", schedule.stages, schedule.actions.size())}};
  for (int stage = 0; stage < schedule.stages; ++stage) StageCheck(schedule, stage, findings).run();
  // Messages are followed only between stages that are sound in themselves: otherwise every finding would come twice.
  if (findings.empty()) findings = Simulation(schedule, limits.buffers).run();
  for (int stage = 0; limits.peak_live && stage < schedule.stages; ++stage) {
    int position = 0;
    const int peak = peak_live(schedule, stage, &position);
    if (peak > *limits.peak_live)
      findings.push_back({stage, position, schedule.actions[stage][position], fmt::format("holds {} activations here, the limit is {}", peak, *limits.peak_live)});
  }
  return findings;
}

void expect_sound(const Schedule& schedule, const Limits& limits) {
  const auto findings = check(schedule, limits);
  if (findings.empty()) return;
  throw data_error("schedule " + schedule.name, to_string(findings.front()) + (findings.size() > 1 ? fmt::format(" (and {} more)", findings.size() - 1) : ""));
}

std::optional<int> fewest_buffers(const Schedule& schedule) {
  // A channel never holds more than one message per microbatch and chunk.
  const int most = schedule.microbatches * schedule.chunks;
  if (!check(schedule, {.buffers = most, .peak_live = {}}).empty()) return std::nullopt;
  int low = 0, high = most;  // more buffers never hurt
  while (low < high) {
    const int middle = (low + high) / 2;
    if (check(schedule, {.buffers = middle, .peak_live = {}}).empty()) high = middle;
    else low = middle + 1;
  }
  return low;
}

}  // namespace manyranks::pipeline
