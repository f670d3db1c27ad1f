// Exercise: find the deadlock. Lesson: 02_message_passing/02_point_to_point.cpp
//
// Every rank holds a strip of a long row of cells, and needs a copy of its neighbours' edges: a halo exchange, as sequence and spatial
// parallelism do it. The first version below worked for small messages on one machine, and hung for ever on the cluster: there send() waits until the
// receiver has come (here it always does). Repair it, for any number of ranks, also for one (which is its own neighbour) and for two
// (where left and right are the same rank). It must not take longer on a larger circle either.
#include "02_deadlock.hpp"  // Ranks

using namespace manyranks;

void manyranks::exchange_ghosts(Ranks& ranks, std::span<float> cells, size_t width) {
  const int rank = ranks.rank(), p = ranks.size();
  const int right = (rank + 1) % p, left = (rank + p - 1) % p;
  const auto left_ghost = cells.first(width), right_ghost = cells.last(width);
  const auto left_edge = cells.subspan(width, width), right_edge = cells.subspan(cells.size() - 2 * width, width);
  // <<< todo
  // This hangs. Who waits for whom?
  // <<< until then
  // ranks.send(right, right_edge);
  // ranks.send(left, left_edge);
  // ranks.recv(left, left_ghost);
  // ranks.recv(right, right_ghost);
  // <<< solution
  ranks.send_recv(right, right_edge, left, left_ghost);  // everything moves to the right ...
  ranks.send_recv(left, left_edge, right, right_ghost);  // ... then to the left
  // >>>
}
