// A small decoder transformer with GPT-2's architecture and names. Its block stands in the open: tensor and sequence
// parallelism (chapter 04) split it, and compare with it.
#pragma once

#include <torch/nn.h>
#include "launch/torch.hpp"

#include "models/model.hpp"

namespace manyranks {

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

}  // namespace manyranks
