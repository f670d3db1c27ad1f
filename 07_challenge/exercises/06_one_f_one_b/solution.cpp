// Exercise: write the 1F1B order. Lesson: 06_pipeline/03_one_f_one_b.cpp
//
// A pipeline of p stages, m microbatches. GPipe lets all of them go forward and then all of them back: every stage then holds m activations. 1F1B
// has the same length, and holds at most p - stage of them: after a warm-up each stage alternates, one forward, one backward, so that activations
// are let go as soon as can be.
//
//   p = 3, m = 5, one column = one unit of time (a backward takes as long as a forward here)
//   stage 0   F0 F1 F2 .  .  B0 F3 B1 F4 B2 .  B3 .  B4
//   stage 1      F0 F1 .  B0 F2 B1 F3 B2 F4 B3 .  B4
//   stage 2         F0 B0 F1 B1 F2 B2 F3 B3 F4 B4
//
// Only the order is yours; when each action starts follows from it: a stage waits for what the action needs.
#include "06_one_f_one_b.hpp"  // Action, Kind

using namespace manyranks;

void manyranks::one_f_one_b(int stage, int stages, int microbatches, std::vector<Action>& order) {
  order.clear();
  // <<< todo
  // Warm-up: how many forwards does this stage make before its first backward can have come back to it? Then alternate; then the rest. With
  // few microbatches there may be nothing but warm-up.
  // <<< until then
  // (void)stage, (void)stages, (void)microbatches;
  // <<< solution
  const int warm_up = std::min(stages - stage - 1, microbatches);
  int forward = 0, backward = 0;
  while (forward < warm_up) order.push_back({Kind::forward, forward++});
  while (forward < microbatches) {
    order.push_back({Kind::forward, forward++});
    order.push_back({Kind::backward, backward++});
  }
  while (backward < microbatches) order.push_back({Kind::backward, backward++});
  // >>>
}
