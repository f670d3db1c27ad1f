// Layers cut over n ranks, in the two ways that fit together: a column-parallel linear layer gives each rank some of the outputs,
// a row-parallel one takes them as its inputs, and only its sum has to travel.
//
//   TensorSplit split{tensor_ranks};                                             // or {tensor_ranks, Sequence::split}
//   auto y = row_linear(gelu(column_linear(x, w1_part, b1_part, split)), w2_part, b2, split);
//
// Between such pairs the activations are whole on every rank, or cut along the sequence: (N, T/n, C). Parameters that are
// whole on every rank (norms, biases behind a sum) then see only some of the tokens: pass them through replicated().
#pragma once

#include "launch/torch.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace manyranks {

class Communicator;
struct ModelShape;

enum class Sequence {
  whole,     // n copies of what lies between the pairs; all-reduce
  split,     // 1/n of it each; reduce-scatter + all-gather, the same bytes
  regather,  // and the gathered input of a column-parallel layer is not kept: gathered again in backward, 5/4 of the bytes
};

struct TensorSplit {
  Communicator& ranks;
  Sequence sequence = Sequence::whole;
  bool is_whole() const { return sequence == Sequence::whole; }
};

// Each is the other's backward pass: f and g in the Megatron paper, and the same two for a split sequence (dimension 1 of x).
torch::Tensor copy_to_ranks(const torch::Tensor& x, Communicator& ranks);     // forward x itself, backward all-reduce
torch::Tensor sum_over_ranks(const torch::Tensor& x, Communicator& ranks);    // forward all-reduce, backward the gradient itself
torch::Tensor gather_sequence(const torch::Tensor& x, Communicator& ranks);   // (N, T/n, C) -> (N, T, C); backward reduce-scatter
torch::Tensor scatter_sequence(const torch::Tensor& x, Communicator& ranks);  // (N, T, C) -> (N, T/n, C), summed; backward all-gather

// Parameters that every rank holds whole. With a split sequence each rank finds only its tokens' part of their gradients:
// these are summed, all in one all-reduce, as soon as the last of them is there. Otherwise they are returned as they are.
std::vector<torch::Tensor> replicated(const std::vector<torch::Tensor>& parameters, const TensorSplit& split);

// weight: (outputs / n, inputs), bias: (outputs / n) or undefined. -> (N, T, outputs / n)
torch::Tensor column_linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias, const TensorSplit& split);
// x: (N, T, inputs / n), weight: (outputs, inputs / n), bias: (outputs), added once, behind the sum.
torch::Tensor row_linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias, const TensorSplit& split);

// tokens: (N, T), weight: rows [rank * vocab/n, ...) of the table, (vocab / n, C). Each token is found by one rank.
torch::Tensor vocabulary_embedding(const torch::Tensor& tokens, const torch::Tensor& weight, const TensorSplit& split);
// Mean cross-entropy from (N, T, vocab / n) of each rank, with target (N, T). Moves three numbers per token, never the logits.
torch::Tensor vocabulary_cross_entropy(const torch::Tensor& logits, const torch::Tensor& target, Communicator& ranks);

// Dropout whose mask is a function of (key, sample, position in the whole tensor): who holds which part does not matter. x is
// (N, M, ...), part [first_middle, first_middle + M) of `middles`, of the samples from first_sample on. On a GPU the mask comes from the CPU.
torch::Tensor keyed_dropout(const torch::Tensor& x, double probability, uint64_t key, int64_t first_sample, int64_t first_middle, int64_t middles);

// The part of a gpt parameter that a rank holds, by its name: rows of c_attn (of each of queries, keys, values), c_fc, wte and
// lm_head, columns of c_proj. Other parameters are whole everywhere.
bool is_split(const std::string& parameter);
torch::Tensor part_of(const std::string& parameter, const torch::Tensor& whole, int rank, int ranks);
torch::Tensor whole_of(const std::string& parameter, const torch::Tensor& part, Communicator& ranks);  // collective

// Two classic mistakes with seeds end here with exit 70 and the parameter's name: a replicated parameter that differs between ranks
// (each rank drew its own), and parts of a split one that are copies of each other (every rank drew the same). Collective.
void check_seeds(const torch::nn::Module& module, Communicator& ranks);

// Exit 64 with the valid choices, if heads, vocabulary or (split) sequence cannot be shared by that many ranks.
void check_gpt_split(const ModelShape& shape, int ranks, Sequence sequence);

}  // namespace manyranks
