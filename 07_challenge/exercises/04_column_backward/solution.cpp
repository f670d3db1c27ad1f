// Exercise: the column-parallel backward pass. Lesson: 04_model_parallel/02_column_row.cpp
//
// Forward, a layer cut by columns needs no communication: every rank has all of x, and makes its own columns of y = x W. Backward is another matter:
// x was used by every rank, so every rank has something to say about its gradient. (Megatron calls the operator f: identity forward, all-reduce
// backward. Its twin g is the other way round.)
//
// kit.hpp has multiply(out, a, b), multiply_first_transposed (a^T b) and multiply_second_transposed (a b^T).
#include "04_column_backward.hpp"  // Ranks, Matrix

using namespace manyranks;

void manyranks::column_backward(Ranks& ranks, const Matrix& input, const Matrix& weight, const Matrix& grad_output, const Matrix& grad_input,
                                const Matrix& grad_weight) {
  // <<< todo
  // Both gradients. Which of them is whole after the local product, and which is only this rank's share of a sum?
  // <<< until then
  // (void)ranks, (void)input, (void)weight, (void)grad_output, (void)grad_input, (void)grad_weight;
  // <<< solution
  multiply_first_transposed(grad_weight, input, grad_output);   // my columns of W met only my columns of y: whole
  multiply_second_transposed(grad_input, grad_output, weight);  // x met all columns: my share of a sum over ranks
  ranks.all_reduce(grad_input.data);
  // >>>
}
