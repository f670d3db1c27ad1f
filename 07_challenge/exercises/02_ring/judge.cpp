#include "02_ring.hpp"

#include "bench.hpp"

namespace manyranks {

namespace {
bool try_size(Bench& bench, decltype(ring_reduce_scatter)* ring, const char* check, size_t n, uint64_t seed) {
  const int p = bench.size(), rank = bench.rank();
  const Parts parts{n, p};
  std::vector<float> want(n), data;
  for (int r = 0; r < p; ++r) {
    const auto theirs = whole_numbers(n, seed * 100 + static_cast<uint64_t>(r));
    for (size_t i = 0; i < n; ++i) want[i] += theirs[i];
    if (r == rank) data = theirs;
  }
  bench.learner(check, [&] { ring(bench.ranks(), data); });
  const auto right = [&](int part) { return first_difference(parts.of(std::span(data), part), parts.of(std::span(want), part)) < 0; };
  // The most common slip gives a complete part, of somebody else.
  const bool elsewhere = p > 1 && !right(rank) && right((rank + 1) % p);
  if (!bench.require(check, right(rank), text("%zu numbers: ", n) + (elsewhere ? text("part %d is complete here, part %d should be", (rank + 1) % p, rank)
                                                                               : difference("my part", parts.of(std::span(data), rank), parts.of(std::span(want), rank))),
                     elsewhere ? "owner" : ""))
    return false;
  const Counts counts = bench.counts();
  const bool neighbour = std::all_of(counts.sent_to.begin(), counts.sent_to.end(), [&](int to) { return to == (rank + 1) % p; });
  bench.require("messages", counts.messages == p - 1 && counts.collectives == 0 && neighbour,
                text("%ld messages%s and %ld collectives; a ring has %d messages, all to the right", static_cast<long>(counts.messages), neighbour ? "" : ", not all to the right", static_cast<long>(counts.collectives), p - 1));
  int64_t bytes = 0;  // a rank passes on every part but the one that ends with it
  for (int r = 0; r < p; ++r) bytes += r == rank ? 0 : static_cast<int64_t>(4 * parts.size(r));
  bench.require("bytes", counts.bytes_sent <= bytes, text("%ld bytes sent, where %ld are enough", static_cast<long>(counts.bytes_sent), static_cast<long>(bytes)));
  const auto most = static_cast<int64_t>(4 * parts.size(0) + 64);
  bench.require("memory", bench.peak_bytes() <= most, text("%ld bytes from the heap, one part has %zu", static_cast<long>(bench.peak_bytes()), 4 * parts.size(0)));
  return true;
}
}  // namespace

void judge_02_ring(Bench& bench) {
  auto* ring = bench.entry<decltype(ring_reduce_scatter)>("ring_reduce_scatter");
  if (!try_size(bench, ring, "result", 12000, 1)) return;
  Random random(bench.seed());
  for (const size_t n : {static_cast<size_t>(100 + random.below(900)) * 4 + 3, static_cast<size_t>(bench.size() + 1), size_t{1}, size_t{0}})
    if (!try_size(bench, ring, "hidden", n, bench.seed())) return;
}

}  // namespace manyranks
