// Exercise: shard the optimiser (ZeRO-1). Lesson: 03_data_parallel/06_zero1.cpp
//
// In plain data parallelism every rank holds the whole optimiser state and makes the same step as all the others: N copies of one thing. With
// ZeRO-1 each rank holds the state of its 1/N of the parameters and updates only those. The bytes on the wire stay the same, because an
// all-reduce is a reduce-scatter followed by an all-gather: the optimiser steps in between.
//
// You may take from the heap: the state of your shard, and one more array of that size. Not more.
#include "03_zero1.hpp"  // Ranks, Backward

using namespace manyranks;

void manyranks::train_zero1(Ranks& ranks, std::span<float> parameters, Backward& backward, int steps, float rate, float momentum) {
  const size_t shard = parameters.size() / static_cast<size_t>(ranks.size());
  const std::span<float> mine = parameters.subspan(static_cast<size_t>(ranks.rank()) * shard, shard);
  // <<< todo
  // For each step: gradients from backward.gradients(step, parameters); the sum of my shard of them over all ranks; my shard's momentum step with
  // their mean; then everybody's new shards. Two collectives per step.
  // <<< until then
  // (void)mine, (void)backward, (void)steps, (void)rate, (void)momentum;
  // <<< solution
  std::vector<float> velocity(shard), gradient(shard);
  for (int step = 0; step < steps; ++step) {
    ranks.reduce_scatter(gradient, backward.gradients(step, parameters));
    for (size_t i = 0; i < shard; ++i) {
      velocity[i] = momentum * velocity[i] + gradient[i] / static_cast<float>(ranks.size());
      mine[i] -= rate * velocity[i];
    }
    ranks.all_gather(parameters, mine);
  }
  // >>>
}
