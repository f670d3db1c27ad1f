#pragma once

#include "kit.hpp"

namespace manyranks {

// A linear layer y = x W whose W (k x m) is cut by columns: rank r holds m/N columns of W, and computes those columns of y.
//   input        n x k      the same on every rank
//   weight       k x m/N    mine
//   grad_output  n x m/N    the loss by my columns of y
//   grad_input   n x k      out: the loss by x, whole, on every rank
//   grad_weight  k x m/N    out: the loss by my columns of W
extern "C" void column_backward(Ranks& ranks, const Matrix& input, const Matrix& weight, const Matrix& grad_output, const Matrix& grad_input,
                                const Matrix& grad_weight);

}  // namespace manyranks
