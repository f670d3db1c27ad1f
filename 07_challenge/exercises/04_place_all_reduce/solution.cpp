// Exercise: place the all-reduce. Lesson: 04_model_parallel/03_transformer_block.cpp
//
// The feed-forward block of a transformer, cut over N ranks: the first matrix by columns, the second by rows. Each rank so holds h/N of the hidden units
// from end to end, and the block needs one all-reduce. Below is the code of one rank, right for N = 1. Where does the all-reduce go, and what
// else has to move because of it?
#include "04_place_all_reduce.hpp"  // Ranks, Matrix

using namespace manyranks;

void manyranks::parallel_mlp(Ranks& ranks, const Matrix& input, const Matrix& w1, std::span<const float> b1, const Matrix& w2, std::span<const float> b2,
                             const Matrix& output) {
  std::vector<float> numbers(input.rows * w1.columns);
  const Matrix hidden{input.rows, w1.columns, numbers};
  // <<< todo
  // One all-reduce, in one call. Which numbers below are a rank's own, which are its share of a sum, and which may be added only once?
  // <<< until then
  // (void)ranks;
  // multiply(hidden, input, w1);
  // for (size_t i = 0; i < hidden.rows; ++i)
  //   for (size_t j = 0; j < hidden.columns; ++j) hidden.at(i, j) = std::max(0.0f, hidden.at(i, j) + b1[j]);
  // multiply(output, hidden, w2);
  // for (size_t i = 0; i < output.rows; ++i)
  //   for (size_t j = 0; j < output.columns; ++j) output.at(i, j) += b2[j];
  // <<< solution
  multiply(hidden, input, w1);
  for (size_t i = 0; i < hidden.rows; ++i)
    for (size_t j = 0; j < hidden.columns; ++j) hidden.at(i, j) = std::max(0.0f, hidden.at(i, j) + b1[j]);  // my hidden units, whole: relu may act on them
  multiply(output, hidden, w2);  // my hidden units' share of every output
  ranks.all_reduce(output.data);
  for (size_t i = 0; i < output.rows; ++i)
    for (size_t j = 0; j < output.columns; ++j) output.at(i, j) += b2[j];  // after the sum: once, not N times
  // >>>
}
