#pragma once

#include "kit.hpp"

namespace manyranks {

// gradients: in, the mean over my samples; out, on every rank, the mean over the samples of all ranks. A rank that has no samples holds
// NaN in all of them (0/0); if nobody has any, the result is 0.
extern "C" void average_gradients(Ranks& ranks, std::span<float> gradients, int64_t samples);

}  // namespace manyranks
