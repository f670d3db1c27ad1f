// A small decoder transformer with GPT-2's architecture and names. Its block stands in the open: tensor and sequence
// parallelism (chapter 04) split it, and compare with it.
#pragma once

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include "launch/torch.hpp"

#include <string>

#include "models/model.hpp"

namespace manyranks {

// The first value of a parameter is a function of (seed, its name in the whole model): who holds it, or a part of it, or only some
// of the layers, begins with the same numbers as everybody else. GPT-2's scheme: normal with 0.02, biases 0, norms 1; what is
// added to the residual stream (2 per block) is scaled down by its depth.
torch::Tensor gpt_initial_value(const std::string& name, at::IntArrayRef sizes, int64_t layers, uint64_t seed);
// The same for all parameters of a module, whose names in the whole model begin with `prefix`.
void initialise_gpt(torch::nn::Module& module, const std::string& prefix, int64_t layers, uint64_t seed);

// Causal self-attention: (N, T, C) -> (N, T, C).
class GptAttention : public torch::nn::Module {
 public:
  explicit GptAttention(const ModelShape& shape);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Linear c_attn{nullptr};  // C -> 3C: queries, keys, values of all heads
  torch::nn::Linear c_proj{nullptr};  // C -> C

 private:
  int64_t heads_;
  double dropout_;
  torch::nn::Dropout residual_dropout_{nullptr};
};

// C -> 4C -> C with GELU (tanh form, as GPT-2).
class GptMlp : public torch::nn::Module {
 public:
  explicit GptMlp(const ModelShape& shape);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Linear c_fc{nullptr}, c_proj{nullptr};

 private:
  torch::nn::Dropout dropout_{nullptr};
};

// x + attention(norm(x)), then x + mlp(norm(x)): 12 C^2 + 13 C parameters.
class GptBlock : public Unit {
 public:
  explicit GptBlock(const ModelShape& shape);
  torch::Tensor forward(torch::Tensor x) override;

  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  std::shared_ptr<GptAttention> attn;
  std::shared_ptr<GptMlp> mlp;
};

// Tokens (N, T) -> (N, T, C).
class GptEmbedding : public Unit {
 public:
  explicit GptEmbedding(const ModelShape& shape);
  torch::Tensor forward(torch::Tensor tokens) override;

  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::Dropout drop{nullptr};

 private:
  int64_t context_;
};

// (N, T, C) -> logits (N, T, vocab). Tied, it holds the embedding itself: one tensor in two units.
class GptHead : public Unit {
 public:
  explicit GptHead(const ModelShape& shape, const torch::nn::Embedding& tied = nullptr);
  torch::Tensor forward(torch::Tensor x) override;

  torch::nn::LayerNorm ln_f{nullptr};
  torch::nn::Linear lm_head{nullptr};
  torch::nn::Embedding wte{nullptr};
};

// For who holds only a part of the model: unit 0 is the embedding, 1 .. layers are blocks, layers + 1 is the head (untied).
inline int64_t gpt_units(const ModelShape& shape) { return shape.layers + 2; }
std::shared_ptr<Unit> make_gpt_unit(const ModelShape& shape, int64_t index);
// What the names of its parameters begin with in the whole model: "h.3." for unit 4, nothing for the first and the last.
std::string gpt_unit_prefix(const ModelShape& shape, int64_t index);

}  // namespace manyranks
