// Exercise: write the ring. Lesson: 02_message_passing/04_ring_all_reduce.cpp
//
// Reduce-scatter is the first half of the ring all-reduce: p ranks, data cut in p parts, p - 1 steps. In each step every rank passes one part to
// its right neighbour, takes one from the left and adds it to its own. A part so collects one rank's numbers at each stop and ends, complete,
// with its owner: part r with rank r. Every rank sends (p-1)/p of the data: no algorithm can do with less.
//
//   p = 3, part 0:   rank 1 --> rank 2 --> rank 0       where does part 0 start, so that it ends with rank 0?
#include "02_ring.hpp"  // Ranks, Parts

using namespace manyranks;

void manyranks::ring_reduce_scatter(Ranks& ranks, std::span<float> data) {
  const int rank = ranks.rank(), p = ranks.size();
  const int right = (rank + 1) % p, left = (rank + p - 1) % p;
  const Parts parts{data.size(), p};  // parts.of(data, i) is part i; sizes may differ by one, and may be 0
  // <<< todo
  // p - 1 steps. In each: which part goes to the right, which one comes from the left? ranks.send_recv does both at once; add what arrived
  // to your own numbers. Allocate one buffer of one part, not more.
  // <<< until then
  // (void)right, (void)left, (void)parts;
  // <<< solution
  std::vector<float> arrived(parts.size(0));
  for (int step = 0; step < p - 1; ++step) {
    const auto out = parts.of(data, (rank - step - 1 + p) % p);
    const auto mine = parts.of(data, (rank - step - 2 + 2 * p) % p);
    const auto in = std::span(arrived).first(mine.size());
    ranks.send_recv(right, out, left, in);
    for (size_t i = 0; i < in.size(); ++i) mine[i] += in[i];
  }
  // >>>
}
