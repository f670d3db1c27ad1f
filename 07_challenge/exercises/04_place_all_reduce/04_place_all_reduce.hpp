#pragma once

#include "kit.hpp"

namespace manyranks {

// output = relu(input W1 + b1) W2 + b2, with W1 cut by columns and W2 by rows.
//   input  n x k      the same on every rank          output  n x k    whole, on every rank
//   w1     k x h/N, b1 h/N    my columns              w2      h/N x k  my rows        b2  k   the same on every rank
extern "C" void parallel_mlp(Ranks& ranks, const Matrix& input, const Matrix& w1, std::span<const float> b1, const Matrix& w2, std::span<const float> b2,
                             const Matrix& output);

}  // namespace manyranks
