#include "02_deadlock.hpp"

#include "bench.hpp"

namespace manyranks {

namespace {
bool try_circle(Bench& bench, decltype(exchange_ghosts)* exchange, const char* check, size_t own, size_t width, uint64_t seed) {
  const int p = bench.size(), rank = bench.rank();
  const auto cells_of = [&](int r) { return whole_numbers(own, seed * 100 + static_cast<uint64_t>(r), 1000); };
  std::vector<float> cells(width, -1), want;
  const auto mine = cells_of(rank), left = cells_of((rank + p - 1) % p), right = cells_of((rank + 1) % p);
  cells.insert(cells.end(), mine.begin(), mine.end());
  cells.insert(cells.end(), width, -1);
  want.insert(want.end(), left.end() - static_cast<long>(width), left.end());
  want.insert(want.end(), mine.begin(), mine.end());
  want.insert(want.end(), right.begin(), right.begin() + static_cast<long>(width));
  bench.learner(check, [&] { exchange(bench.ranks(), cells, width); });
  bench.require(check, true, "");
  const char* about = std::string_view(check) == "meets" ? "result" : check;
  if (!bench.require(about, first_difference(cells, want) < 0, difference(text("%zu own cells, ghosts of %zu: cells", own, width).c_str(), cells, want))) return false;
  // Two by two (even ranks send first, odd ones receive first) takes four rounds, send_recv two. One after the other takes more with every rank.
  // A gather of all cells has no chain of messages at all, and moves p times as much: not what a neighbour needs.
  const auto collectives = static_cast<long>(bench.counts().collectives);
  bench.require("rounds", collectives == 0, text("%ld collectives, where each rank has to talk with two neighbours only", collectives), "collective");
  bench.require("rounds", bench.counts().rounds <= 4, text("a chain of %ld messages, each waiting for the one before; 4 are enough on any circle", static_cast<long>(bench.counts().rounds)));
  return true;
}
}  // namespace

void judge_02_deadlock(Bench& bench) {
  auto* exchange = bench.entry<decltype(exchange_ghosts)>("exchange_ghosts");
  if (!try_circle(bench, exchange, "meets", 64, 4, 1)) return;
  Random random(bench.seed());
  for (int i = 0; i < 3; ++i) {
    const auto width = static_cast<size_t>(i == 0 ? 1 : 1 + random.below(5000));
    if (!try_circle(bench, exchange, "hidden", i == 1 ? width : width + static_cast<size_t>(random.below(100)), width, bench.seed() + static_cast<uint64_t>(i))) return;
  }
}

}  // namespace manyranks
