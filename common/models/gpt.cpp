#include <torch/nn.h>
#include "models/gpt.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <limits>

#include "launch/errors.hpp"
#include "models/gelu.hpp"
#include "models/kinds.hpp"

namespace manyranks {

using torch::nn::Embedding;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;
using torch::nn::LinearOptions;

GptAttention::GptAttention(const ModelShape& shape) : heads_(shape.heads), dropout_(shape.dropout) {
  c_attn = register_module("c_attn", Linear(shape.width, 3 * shape.width));
  c_proj = register_module("c_proj", Linear(shape.width, shape.width));
  residual_dropout_ = register_module("resid_dropout", torch::nn::Dropout(shape.dropout));
}

torch::Tensor GptAttention::forward(const torch::Tensor& x) {
  const int64_t n = x.size(0), t = x.size(1), c = x.size(2);
  const auto parts = c_attn(x).split(c, 2);  // 3 of (N, T, C)
  const auto by_head = [&](const torch::Tensor& part) { return part.view({n, t, heads_, c / heads_}).transpose(1, 2); };
  const torch::Tensor y = at::scaled_dot_product_attention(  // (N, heads, T, C/heads); never holds the (T, T) scores whole
      by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), {}, is_training() ? dropout_ : 0.0, /*is_causal=*/true);
  return residual_dropout_(c_proj(y.transpose(1, 2).reshape({n, t, c})));
}

GptMlp::GptMlp(const ModelShape& shape) {
  c_fc = register_module("c_fc", Linear(shape.width, 4 * shape.width));
  c_proj = register_module("c_proj", Linear(4 * shape.width, shape.width));
  dropout_ = register_module("dropout", torch::nn::Dropout(shape.dropout));
}

torch::Tensor GptMlp::forward(const torch::Tensor& x) { return dropout_(c_proj(gelu_tanh(c_fc(x)))); }

GptBlock::GptBlock(const ModelShape& shape) {
  ln_1 = register_module("ln_1", LayerNorm(LayerNormOptions({shape.width})));
  attn = register_module("attn", std::make_shared<GptAttention>(shape));
  ln_2 = register_module("ln_2", LayerNorm(LayerNormOptions({shape.width})));
  mlp = register_module("mlp", std::make_shared<GptMlp>(shape));
}

torch::Tensor GptBlock::forward(torch::Tensor x) {
  x = x + attn->forward(ln_1(x));
  return x + mlp->forward(ln_2(x));
}

GptEmbedding::GptEmbedding(const ModelShape& shape) : context_(shape.context) {
  wte = register_module("wte", Embedding(shape.vocab, shape.width));
  wpe = register_module("wpe", Embedding(shape.context, shape.width));
  drop = register_module("drop", torch::nn::Dropout(shape.dropout));
}

torch::Tensor GptEmbedding::forward(torch::Tensor tokens) {
  if (tokens.dim() != 2 || tokens.size(1) > context_) {
    throw usage_error("gpt", "tokens must be (N, T) with T <= " + std::to_string(context_));
  }
  return drop(wte(tokens) + wpe(torch::arange(tokens.size(1), tokens.options())));
}

GptHead::GptHead(const ModelShape& shape, const Embedding& tied) {
  ln_f = register_module("ln_f", LayerNorm(LayerNormOptions({shape.width})));
  if (shape.tie_weights && !tied) throw usage_error("gpt", "a head with tied weights needs the embedding", "untied weights where the model is cut");
  if (shape.tie_weights) {
    wte = register_module("wte", tied);
  } else {
    lm_head = register_module("lm_head", Linear(LinearOptions(shape.width, shape.vocab).bias(false)));
  }
}

torch::Tensor GptHead::forward(torch::Tensor x) { return torch::linear(ln_f(x), lm_head ? lm_head->weight : wte->weight); }

std::shared_ptr<Unit> make_gpt_unit(const ModelShape& shape, int64_t index) {
  if (index == 0) return std::make_shared<GptEmbedding>(shape);
  if (index <= shape.layers) return std::make_shared<GptBlock>(shape);
  return std::make_shared<GptHead>(shape);
}

std::string gpt_unit_prefix(const ModelShape& shape, int64_t index) {
  return index >= 1 && index <= shape.layers ? "h." + std::to_string(index - 1) + "." : "";
}

torch::Tensor gpt_initial_value(const std::string& name, at::IntArrayRef sizes, int64_t layers, uint64_t seed) {
  if (name.ends_with("bias")) return torch::zeros(sizes);
  if (name.find("ln_") != std::string::npos) return torch::ones(sizes);
  uint64_t key = seed;  // FNV-1a of the name: the same on every machine, unlike std::hash
  for (const unsigned char letter : name) key = (key ^ letter) * 1099511628211U;
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(layers));
  return torch::empty(sizes).normal_(0.0, name.ends_with("c_proj.weight") ? residual : 0.02, at::make_generator<at::CPUGeneratorImpl>(key));
}

void initialise_gpt(torch::nn::Module& module, const std::string& prefix, int64_t layers, uint64_t seed) {
  torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) item.value().copy_(gpt_initial_value(prefix + item.key(), item.value().sizes(), layers, seed));
}

namespace {

class Gpt : public Model {
 public:
  explicit Gpt(const ModelShape& shape) : Model("gpt", shape) {
    auto embedding = add_unit(std::make_shared<GptEmbedding>(shape));
    register_module("wte", embedding->wte);
    register_module("wpe", embedding->wpe);
    register_module("drop", embedding->drop);
    auto blocks = register_module("h", std::make_shared<Names>());
    for (int64_t i = 0; i < shape.layers; ++i) {
      blocks->register_module(std::to_string(i), add_unit(std::make_shared<GptBlock>(shape)));
    }
    auto head = add_unit(std::make_shared<GptHead>(shape, embedding->wte));
    register_module("ln_f", head->ln_f);
    if (head->lm_head) register_module("lm_head", head->lm_head);
    initialise_gpt(*this, "", shape.layers, torch::randint(std::numeric_limits<int64_t>::max(), {1}, torch::kLong).item<int64_t>());
  }
};

}  // namespace

std::shared_ptr<Model> make_gpt(const ModelShape& shape) { return std::make_shared<Gpt>(shape); }

}  // namespace manyranks
