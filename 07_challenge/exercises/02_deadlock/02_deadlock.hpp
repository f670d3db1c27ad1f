#pragma once

#include "kit.hpp"

namespace manyranks {

// cells = [left ghost | own cells | right ghost], each ghost `width` numbers wide. Afterwards the left ghost holds the last `width` own cells of
// the left neighbour, and the right ghost the first `width` own cells of the right one. The ranks form a circle.
extern "C" void exchange_ghosts(Ranks& ranks, std::span<float> cells, size_t width);

}  // namespace manyranks
