#include "count.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <tuple>

namespace manyranks::pipeline {

Fraction Fraction::of(int64_t numerator, int64_t denominator) {
  const int64_t divisor = std::max<int64_t>(1, std::gcd(numerator, denominator));
  return {numerator / divisor, denominator / divisor};
}

int64_t Costs::of(Kind kind) const {
  switch (kind) {
    case Kind::forward: return forward;
    case Kind::backward: return backward();
    case Kind::backward_input: return input;
    case Kind::backward_weight: return weight;
    default: return 0;
  }
}

Count count(const Schedule& schedule, const Costs& costs) {
  Count result;
  result.busy.assign(schedule.stages, 0);
  result.timeline.resize(schedule.stages);
  std::vector<size_t> position(schedule.stages, 0);
  std::vector<int64_t> clock(schedule.stages, 0);
  // (activation?, virtual stage it goes to, microbatch) -> when it was sent. A message is never late: it arrives at once.
  std::map<std::tuple<bool, int, int>, int64_t> sent;
  bool progress = true;
  while (progress) {
    progress = false;
    for (int stage = 0; stage < schedule.stages; ++stage)
      for (; position[stage] < schedule.actions[stage].size(); ++position[stage], progress = true) {
        const Action& action = schedule.actions[stage][position[stage]];
        if (is_compute(action.kind)) {
          const int64_t start = clock[stage];
          clock[stage] += costs.of(action.kind);
          result.busy[stage] += costs.of(action.kind);
          result.timeline[stage].push_back({action, static_cast<double>(start), static_cast<double>(clock[stage])});
        } else if (const auto peer = schedule.peer(stage, action)) {
          const bool sends = is_send(action.kind);
          const int to = sends ? schedule.virtual_stage(peer->stage, peer->chunk) : schedule.virtual_stage(stage, action.chunk);
          const std::tuple message{carries_activation(action.kind), to, action.microbatch};
          if (sends) {
            sent[message] = clock[stage];
          } else {
            const auto found = sent.find(message);
            if (found == sent.end()) break;
            clock[stage] = std::max(clock[stage], found->second);
          }
        }
      }
  }
  for (int stage = 0; stage < schedule.stages; ++stage) {
    if (position[stage] < schedule.actions[stage].size()) throw std::logic_error("count() needs a schedule that has passed the checks");
    result.peak_live.push_back(peak_live(schedule, stage));
  }
  result.makespan = *std::max_element(clock.begin(), clock.end());
  const int64_t all = result.makespan * schedule.stages;
  result.bubble = Fraction::of(all - std::accumulate(result.busy.begin(), result.busy.end(), int64_t{0}), all);
  return result;
}

int peak_live(const Schedule& schedule, int stage, int* at) {
  int live = 0, peak = 0;
  const auto& actions = schedule.actions[stage];
  for (size_t position = 0; position < actions.size(); ++position) {
    const Kind kind = actions[position].kind;
    if (kind == Kind::forward && ++live > peak) {
      peak = live;
      if (at) *at = static_cast<int>(position);
    }
    if (kind == Kind::backward || kind == Kind::backward_weight) --live;
  }
  return peak;
}

std::optional<Fraction> theory_bubble(const Schedule& schedule, const Costs& costs) {
  const int64_t p = schedule.stages, m = schedule.microbatches, v = schedule.chunks, f = costs.forward, b = costs.backward(), w = costs.weight;
  if (schedule.name == "naive") return Fraction::of(p - 1, p);
  if (schedule.name == "gpipe" || schedule.name == "1f1b") return Fraction::of(p - 1, m + p - 1);
  if (schedule.name == "interleaved" && m % p == 0) return Fraction::of(p - 1, v * m + p - 1);
  if (schedule.name == "zb-h1" && m >= p && w <= f && w <= costs.input)
    return Fraction::of((p - 1) * (f + b - 2 * w), m * (f + b) + (p - 1) * (f + b - 2 * w));
  return std::nullopt;
}

std::optional<int> theory_peak_live(const Schedule& schedule, int stage) {
  const int p = schedule.stages, m = schedule.microbatches, v = schedule.chunks;
  if (schedule.name == "naive") return 1;
  if (schedule.name == "gpipe") return m;
  if (schedule.name == "1f1b" || (schedule.name == "interleaved" && v == 1)) return std::min(m, p - stage);
  if (schedule.name == "interleaved" && m % p == 0) return std::min(v * m, 2 * (p - 1 - stage) + (v - 1) * p + 1);
  if (schedule.name == "zb-h1") return std::min(m, p);
  return std::nullopt;
}

}  // namespace manyranks::pipeline
