#include <torch/nn.h>
#include "parallel/parallel_gpt.hpp"

#include <cmath>

#include "comm/communicator.hpp"
#include "data/random.hpp"
#include "launch/errors.hpp"
#include "models/gelu.hpp"
#include "models/gpt.hpp"
#include "models/kinds.hpp"  // Names

namespace manyranks {
namespace {

using torch::Tensor;

// What all units share.
struct Context {
  ModelShape shape;
  TensorSplit split;
  std::shared_ptr<RandomKeys> keys;

  int64_t ranks() const { return split.ranks.size(); }
  int64_t place() const { return keys->tensor_rank >= 0 ? keys->tensor_rank : split.ranks.rank(); }
  uint64_t key(int64_t layer, int64_t site) const { return Random(keys->seed, static_cast<uint64_t>(keys->step), static_cast<uint64_t>(4 * layer + site)).bits(); }

  // Of (N, T, C), whole on every rank (the same mask everywhere) or my part of the sequence (a part of the same mask).
  Tensor dropout(const Tensor& x, int64_t layer, int64_t site) const {
    const int64_t parts = split.is_whole() ? 1 : ranks();
    return keyed_dropout(x, shape.dropout, key(layer, site), keys->first_sample, split.is_whole() ? 0 : place() * x.size(1), parts * x.size(1));
  }
};

// A parameter with no value yet, of the dense size with one dimension cut.
Tensor cut(torch::nn::Module& module, const std::string& name, std::vector<int64_t> sizes, int64_t dimension, int64_t parts) {
  sizes[dimension] /= parts;
  return module.register_parameter(name, torch::empty(sizes));
}

// Weight and bias under one name, as the dense layers have them; what they mean is the unit's business.
class Affine : public torch::nn::Module {
 public:
  Affine(std::vector<int64_t> sizes, int64_t dimension, int64_t parts, bool has_bias = true) {
    const int64_t outputs = sizes[0];
    weight = cut(*this, "weight", std::move(sizes), dimension, parts);
    if (has_bias) bias = cut(*this, "bias", {outputs}, 0, dimension == 0 ? parts : 1);  // behind a sum: whole
  }
  Tensor weight, bias;
};

std::shared_ptr<Affine> norm(int64_t width) { return std::make_shared<Affine>(std::vector<int64_t>{width}, 0, 1); }

class ParallelEmbedding : public Unit {
 public:
  explicit ParallelEmbedding(const Context& context) : context_(context) {
    const ModelShape& s = context_.shape;
    wte = register_module("wte", std::make_shared<Affine>(std::vector<int64_t>{s.vocab, s.width}, 0, context_.ranks(), false));
    wpe = register_module("wpe", std::make_shared<Affine>(std::vector<int64_t>{s.context, s.width}, 0, 1, false));
  }
  Tensor forward(Tensor tokens) override {
    const TensorSplit& split = context_.split;
    const int64_t mine = split.is_whole() ? tokens.size(1) : tokens.size(1) / context_.ranks();  // positions
    const auto positions = replicated({wpe->weight}, split)[0].narrow(0, split.is_whole() ? 0 : split.ranks.rank() * mine, mine);
    return context_.dropout(vocabulary_embedding(tokens, wte->weight, split) + positions, 0, 0);
  }
  std::shared_ptr<Affine> wte, wpe;

 private:
  Context context_;
};

class ParallelBlock : public Unit {
 public:
  ParallelBlock(const Context& context, int64_t layer) : context_(context), layer_(layer) {
    const int64_t c = context_.shape.width, n = context_.ranks();
    using Sizes = std::vector<int64_t>;
    const auto attn = std::make_shared<Names>(), mlp = std::make_shared<Names>();
    ln_1_ = register_module("ln_1", norm(c));
    register_module("attn", attn);
    c_attn_ = attn->register_module("c_attn", std::make_shared<Affine>(Sizes{3 * c, c}, 0, n));
    attn_proj_ = attn->register_module("c_proj", std::make_shared<Affine>(Sizes{c, c}, 1, n));
    ln_2_ = register_module("ln_2", norm(c));
    register_module("mlp", mlp);
    c_fc_ = mlp->register_module("c_fc", std::make_shared<Affine>(Sizes{4 * c, c}, 0, n));
    mlp_proj_ = mlp->register_module("c_proj", std::make_shared<Affine>(Sizes{c, 4 * c}, 1, n));
  }

  // x: (N, T, C), or (N, T/n, C) of a split sequence. Twice: into the cut layer, and the sum of its parts out of it.
  Tensor forward(Tensor x) override {
    const TensorSplit& split = context_.split;
    const int64_t c = x.size(2);
    const auto r = replicated({ln_1_->weight, ln_1_->bias, attn_proj_->bias, ln_2_->weight, ln_2_->bias, mlp_proj_->bias}, split);
    const auto heads = attention(column_linear(torch::layer_norm(x, {c}, r[0], r[1]), c_attn_->weight, c_attn_->bias, split));
    x = x + context_.dropout(row_linear(heads, attn_proj_->weight, r[2], split), layer_, 1);
    const auto hidden = gelu_tanh(column_linear(torch::layer_norm(x, {c}, r[3], r[4]), c_fc_->weight, c_fc_->bias, split));
    return x + context_.dropout(row_linear(hidden, mlp_proj_->weight, r[5], split), layer_, 2);
  }

 private:
  // (N, T, 3 C/n) -> (N, T, C/n): my heads, all positions; nothing to exchange.
  Tensor attention(const Tensor& qkv) {
    const int64_t n = qkv.size(0), t = qkv.size(1), c = qkv.size(2) / 3, heads = context_.shape.heads / context_.ranks();
    const auto parts = qkv.split(c, 2);
    const auto by_head = [&](const Tensor& part) { return part.view({n, t, heads, c / heads}).transpose(1, 2); };
    const auto q = by_head(parts[0]), k = by_head(parts[1]), v = by_head(parts[2]);
    if (context_.shape.dropout == 0 || !is_training())
      return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true).transpose(1, 2).reshape({n, t, c});
    // With dropout on the weights they must be seen whole: (N, heads, T, T).
    const auto future = torch::ones({t, t}, q.options().dtype(torch::kBool)).triu(1);
    auto weights = (q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(c / heads))).masked_fill(future, -INFINITY).softmax(-1);
    weights = keyed_dropout(weights, context_.shape.dropout, context_.key(layer_, 3), context_.keys->first_sample, context_.place() * heads, context_.shape.heads);
    return weights.matmul(v).transpose(1, 2).reshape({n, t, c});
  }

  Context context_;
  int64_t layer_;
  std::shared_ptr<Affine> ln_1_, c_attn_, attn_proj_, ln_2_, c_fc_, mlp_proj_;
};

class ParallelHead : public Unit {
 public:
  ParallelHead(const Context& context, const std::shared_ptr<Affine>& tied) : context_(context) {
    const ModelShape& s = context_.shape;
    ln_f = register_module("ln_f", norm(s.width));
    if (s.tie_weights && !tied) throw usage_error("gpt", "tied weights need the embedding and the head on one rank", "untied weights");
    table = s.tie_weights ? register_module("wte", tied)
                          : register_module("lm_head", std::make_shared<Affine>(std::vector<int64_t>{s.vocab, s.width}, 0, context_.ranks(), false));
  }
  Tensor forward(Tensor x) override {
    const auto r = replicated({ln_f->weight, ln_f->bias}, context_.split);
    return column_linear(torch::layer_norm(x, {x.size(2)}, r[0], r[1]), table->weight, Tensor(), context_.split);
  }
  std::shared_ptr<Affine> ln_f, table;

 private:
  Context context_;
};

}  // namespace

ParallelGpt::ParallelGpt(const ModelShape& shape, const TensorSplit& split, const RandomKeys& keys, UnitRange range)
    : Model("gpt", shape), split_(split), keys_(std::make_shared<RandomKeys>(keys)) {
  check_gpt_split(shape, split.ranks.size(), split.sequence);
  const Context context{shape, split_, keys_};
  const int64_t head = shape.layers + 1, end = range.end < 0 ? head + 1 : range.end;
  std::shared_ptr<ParallelEmbedding> embedding;
  if (range.begin == 0) {
    embedding = add_unit(std::make_shared<ParallelEmbedding>(context));
    register_module("wte", embedding->wte);
    register_module("wpe", embedding->wpe);
  }
  const auto blocks = register_module("h", std::make_shared<Names>());
  for (int64_t unit = std::max<int64_t>(1, range.begin); unit < std::min(end, head); ++unit)
    blocks->register_module(std::to_string(unit - 1), add_unit(std::make_shared<ParallelBlock>(context, unit - 1)));
  if (end > head) {
    const auto last = add_unit(std::make_shared<ParallelHead>(context, embedding ? embedding->wte : nullptr));
    register_module("ln_f", last->ln_f);
    if (!shape.tie_weights) register_module("lm_head", last->table);
  }
  // Whole values one at a time: what does not fit at once never has to.
  torch::NoGradGuard no_grad;
  for (auto& item : named_parameters()) {
    std::vector<int64_t> whole = item.value().sizes().vec();
    if (is_split(item.key())) whole[item.key().ends_with("c_proj.weight") ? 1 : 0] *= split_.ranks.size();
    item.value().copy_(part_of(item.key(), gpt_initial_value(item.key(), whole, shape.layers, keys.seed), split_.ranks.rank(), split_.ranks.size()));
  }
}

Tensor ParallelGpt::loss(const Tensor& logits, const Tensor& target) { return vocabulary_cross_entropy(logits, target, split_.ranks); }

std::vector<Tensor> ParallelGpt::gather_whole() const {
  std::vector<Tensor> all;
  for (const auto& item : named_parameters()) all.push_back(whole_of(item.key(), item.value(), split_.ranks));
  return all;
}

}  // namespace manyranks
