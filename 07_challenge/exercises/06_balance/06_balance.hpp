#pragma once

#include "kit.hpp"

namespace manyranks {

// costs: how long each unit of the model took, in microseconds, as this rank measured it; may be overwritten. Out: how many consecutive units each stage
// gets, at least one, so that the slowest stage is as fast as can be, by the mean of what the ranks measured. The same cut on every rank.
extern "C" void balance(Ranks& ranks, std::span<float> costs, int stages, std::vector<int>& units);

}  // namespace manyranks
