#include "06_one_f_one_b.hpp"

#include "bench.hpp"

namespace manyranks {

namespace {
using Orders = std::vector<std::vector<Action>>;  // by stage

bool is_complete(const std::vector<Action>& order, int microbatches, std::string& seen) {
  std::vector<int> times(2 * static_cast<size_t>(microbatches));
  for (const auto& [kind, microbatch] : order) {
    if (microbatch < 0 || microbatch >= microbatches) return seen = text("microbatch %d of %d", microbatch, microbatches), false;
    ++times[static_cast<size_t>(2 * microbatch + (kind == Kind::backward))];
  }
  for (size_t i = 0; i < times.size(); ++i)
    if (times[i] != 1) return seen = text("%s of microbatch %zu comes %d times", i % 2 ? "backward" : "forward", i / 2, times[i]), false;
  return true;
}

// Runs the orders: each stage in its order, each action when what it needs is there. Backward takes `back` units, forward 1. Returns the end, or -1
// if all wait for each other.
double length(const Orders& orders, int microbatches, double back, std::string& seen) {
  const int p = static_cast<int>(orders.size());
  const auto slot = [&](int stage, Kind kind, int microbatch) { return static_cast<size_t>((stage * 2 + (kind == Kind::backward)) * microbatches + microbatch); };
  std::vector<double> done(static_cast<size_t>(2 * p * microbatches), -1), free_at(static_cast<size_t>(p));
  std::vector<size_t> next(static_cast<size_t>(p));
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < p; ++s) {
      while (next[s] < orders[s].size()) {
        const auto [kind, m] = orders[s][next[s]];
        double ready = 0;
        if (kind == Kind::forward && s > 0) ready = done[slot(s - 1, kind, m)];
        if (kind == Kind::backward) ready = done[slot(s, Kind::forward, m)];
        if (kind == Kind::backward && s + 1 < p) ready = std::min(ready, done[slot(s + 1, kind, m)]) < 0 ? -1 : std::max(ready, done[slot(s + 1, kind, m)]);
        if (ready < 0) break;
        done[slot(s, kind, m)] = free_at[s] = std::max(ready, free_at[s]) + (kind == Kind::forward ? 1 : back);
        ++next[s];
        moved = true;
      }
    }
  }
  for (int s = 0; s < p; ++s)
    if (next[s] < orders[s].size()) {
      const auto [kind, m] = orders[s][next[s]];
      return seen = text("%d stages, %d microbatches: stage %d waits for ever before %s of microbatch %d", p, microbatches, s, kind == Kind::forward ? "forward" : "backward", m), -1;
    }
  return *std::max_element(free_at.begin(), free_at.end());
}

int most_held(const std::vector<Action>& order) {
  int held = 0, most = 0;
  for (const auto& action : order) most = std::max(most, held += action.kind == Kind::forward ? 1 : -1);
  return most;
}

// One pipeline, all of its stages, through all checks; `check` is "" or "hidden".
bool try_pipeline(Bench& bench, const Orders& orders, int m, const char* hidden) {
  const int p = static_cast<int>(orders.size());
  const auto name = [&](const char* check) { return *hidden ? hidden : check; };
  std::string seen;
  for (int s = 0; s < p && seen.empty(); ++s)
    if (!is_complete(orders[s], m, seen)) seen = text("stage %d of %d, %d microbatches: ", s, p, m) + seen;
  if (!bench.require(name("complete"), seen.empty(), seen)) return false;
  const double back = 2, end = length(orders, m, back, seen), best = (m + p - 1) * (1 + back);
  if (!bench.require(name("runs"), end >= 0, seen)) return false;
  bool good = true;
  for (int s = 0; s < p && seen.empty(); ++s)
    if (const int held = most_held(orders[s]); held > std::min(m, p - s)) seen = text("stage %d of %d holds up to %d of %d microbatches, %d are enough", s, p, held, m, std::min(m, p - s));
  bool gpipe = !seen.empty();
  for (int s = 0; s < p; ++s) gpipe = gpipe && most_held(orders[s]) == m;
  good &= bench.require(name("memory"), seen.empty(), seen, gpipe ? "gpipe" : "");
  good &= bench.require(name("length"), end <= best, text("%d stages, %d microbatches: the pipeline takes %g units (forward 1, backward 2), it can be done in %g", p, m, end, best));
  return good;
}
}  // namespace

void judge_06_one_f_one_b(Bench& bench) {
  auto* write = bench.entry<decltype(one_f_one_b)>("one_f_one_b");
  // 1. One stage per rank: each writes its own order, and all are put together.
  const int p = bench.size(), m = 6;
  std::vector<Action> mine;
  bench.learner("complete", [&] { write(bench.rank(), p, m, mine); });
  if (!bench.require("complete", mine.size() == 2 * m, text("stage %d of %d, %d microbatches: %zu actions, %d are to be done", bench.rank(), p, m, mine.size(), 2 * m))) return;
  std::vector<float> flat;
  for (const auto& action : mine) flat.push_back(static_cast<float>(2 * action.microbatch + (action.kind == Kind::backward)));
  const auto all = bench.collect(flat);
  Orders orders(static_cast<size_t>(p));
  for (size_t i = 0; i < all.size(); ++i) orders[i / (2 * m)].push_back({static_cast<int>(all[i]) % 2 ? Kind::backward : Kind::forward, static_cast<int>(all[i]) / 2});
  if (!try_pipeline(bench, orders, m, "")) return;
  // 2. Pipelines longer than there are ranks, with many and with few microbatches.
  Random random(bench.seed());
  for (int i = 0; i < 12; ++i) {
    const int stages = i == 0 ? 2 : static_cast<int>(1 + random.below(9)), microbatches = i == 1 ? 1 : i % 3 == 0 ? static_cast<int>(1 + random.below(stages)) : static_cast<int>(stages + random.below(20));
    Orders several(static_cast<size_t>(stages));
    bench.learner("hidden", [&] { for (int s = 0; s < stages; ++s) write(s, stages, microbatches, several[s]); });
    if (!try_pipeline(bench, several, microbatches, "hidden")) return;
  }
}

}  // namespace manyranks
