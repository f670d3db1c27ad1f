// What cutting a gpt over n tensor ranks costs, from its shape alone: parameters, activations, and elements moved.
#pragma once

#include "models/model.hpp"              // ModelShape
#include "parallel/tensor_parallel.hpp"  // Sequence

namespace manyranks {

// Parameters that one rank holds.
double parameters_per_rank(const ModelShape& shape, int ranks);

// Elements that an all-reduce would carry, s = tokens, C = width: what a rank sends is 2(n-1)/n of them. A reduce-scatter and an
// all-gather count half each.
//   block: 4 s C (two forward, two backward); + 6 C of replicated gradients if the sequence is split; regather: 5 s C
//   ends:  embedding and head s C each, three numbers per token for the loss, and the same extras
double moved_by_block(const ModelShape& shape, int64_t tokens, Sequence sequence);
double moved_by_ends(const ModelShape& shape, int64_t tokens, Sequence sequence);
double sent_bytes(double elements, int ranks, int64_t element_size = 4);

// Bytes that autograd keeps from forward to backward, fp32, no dropout.
//   block, per token: whole 4C + 12C/n; split 2C + 14C/n; regather 16C/n; and a few numbers of norms and softmax
double kept_by_block(const ModelShape& shape, int64_t tokens, int ranks, Sequence sequence);
double kept_by_ends(const ModelShape& shape, int64_t tokens, int ranks, Sequence sequence);
// The same for models/gpt.hpp.
double kept_by_dense(const ModelShape& shape, int64_t tokens);

}  // namespace manyranks
