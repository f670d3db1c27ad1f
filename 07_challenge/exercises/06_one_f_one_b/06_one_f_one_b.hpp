#pragma once

#include "kit.hpp"

namespace manyranks {

enum class Kind { forward, backward };
struct Action {
  Kind kind;
  int microbatch;
};

// What this stage does, in order: forward and backward of each of the microbatches 0 .. microbatches - 1, once.
extern "C" void one_f_one_b(int stage, int stages, int microbatches, std::vector<Action>& order);

}  // namespace manyranks
