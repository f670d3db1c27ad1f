#pragma once

#include "kit.hpp"

namespace manyranks {

// In place. Afterwards part `rank` of data holds the sum over all ranks; what the other parts hold does not matter.
extern "C" void ring_reduce_scatter(Ranks& ranks, std::span<float> data);

}  // namespace manyranks
