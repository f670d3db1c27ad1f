#include "parallel/tensor_parallel.hpp"

#include <fmt/format.h>

#include "comm/communicator.hpp"
#include "data/random.hpp"
#include "launch/errors.hpp"
#include "models/model.hpp"

namespace manyranks {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Move { keep, sum, gather, scatter };

Move conjugate(Move move) {
  switch (move) {
    case Move::keep: return Move::sum;
    case Move::sum: return Move::keep;
    case Move::gather: return Move::scatter;
    case Move::scatter: return Move::gather;
  }
  throw usage_error("tensor parallel", "there is no such move");
}

// A part of the sequence is not contiguous in (N, T, C): the two copies below are what batch-first costs where N > 1.
Tensor gathered(const Tensor& part, Communicator& ranks) {
  auto parts = torch::empty({ranks.size(), part.size(0), part.size(1), part.size(2)}, part.options());
  ranks.all_gather(parts, part.contiguous());
  return parts.transpose(0, 1).reshape({part.size(0), ranks.size() * part.size(1), part.size(2)});
}

Tensor scattered(const Tensor& whole, Communicator& ranks) {
  const int64_t n = ranks.size(), t = whole.size(1) / n;
  const auto parts = whole.reshape({whole.size(0), n, t, whole.size(2)}).transpose(0, 1).contiguous();  // (n, N, T/n, C)
  auto sum = torch::empty({whole.size(0), t, whole.size(2)}, whole.options());
  ranks.reduce_scatter(sum, parts);
  return sum;
}

Tensor summed(const Tensor& x, Communicator& ranks) {
  const auto in = x.contiguous();
  auto out = torch::empty_like(in);  // not in place: autograd may still need the addend
  ranks.all_reduce(out, in);
  return out;
}

Tensor run(Move move, const Tensor& x, Communicator& ranks) {
  switch (move) {
    case Move::keep: return x;
    case Move::sum: return summed(x, ranks);
    case Move::gather: return gathered(x, ranks);
    case Move::scatter: return scattered(x, ranks);
  }
  throw usage_error("tensor parallel", "there is no such move");
}

// A context keeps numbers, not pointers; the communicator outlives the graph.
void keep_ranks(AutogradContext* context, Communicator& ranks) { context->saved_data["ranks"] = reinterpret_cast<int64_t>(&ranks); }
Communicator& kept_ranks(AutogradContext* context) { return *reinterpret_cast<Communicator*>(context->saved_data["ranks"].toInt()); }

struct Exchange : torch::autograd::Function<Exchange> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Move move, Communicator* ranks) {
    context->saved_data["back"] = static_cast<int64_t>(conjugate(move));
    keep_ranks(context, *ranks);
    return run(move, x, *ranks);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto back = static_cast<Move>(context->saved_data["back"].toInt());
    return {run(back, gradients[0], kept_ranks(context)), Tensor(), Tensor()};
  }
};

// One rank has nobody to talk to: no node in the graph, no copy.
Tensor exchange(const Tensor& x, Move move, Communicator& ranks) { return ranks.size() == 1 ? x : Exchange::apply(x, move, &ranks); }

// copy_to_ranks for a list: one all-reduce for all gradients.
struct Replicated : torch::autograd::Function<Replicated> {
  static variable_list forward(AutogradContext* context, at::TensorList parameters, Communicator* ranks) {
    keep_ranks(context, *ranks);
    context->set_materialize_grads(true);
    variable_list same;
    for (const Tensor& parameter : parameters) same.push_back(parameter.view_as(parameter));
    return same;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    std::vector<Tensor> rows;
    for (const Tensor& gradient : gradients) rows.push_back(gradient.reshape({-1}));
    auto sum = torch::cat(rows);
    kept_ranks(context).all_reduce(sum);
    variable_list parts;
    int64_t begin = 0;
    for (const Tensor& gradient : gradients) {
      parts.push_back(sum.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
      begin += gradient.numel();
    }
    parts.emplace_back();
    return parts;
  }
};

// gather_sequence and a linear layer in one, which keeps x as it came, (N, T/n, C): 1/n of what autograd would keep.
struct RegatherLinear : torch::autograd::Function<RegatherLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Communicator* ranks) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    keep_ranks(context, *ranks);
    return torch::linear(gathered(x, *ranks), weight, bias);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    Communicator& ranks = kept_ranks(context);
    const auto type = gradients[0].scalar_type();  // half precision if forward ran under autocast, which this is outside of
    const auto x = gathered(saved[0], ranks).to(type);
    const auto rows = gradients[0].reshape({-1, gradients[0].size(-1)});  // (N T, outputs / n)
    const auto weight_gradient = rows.t().matmul(x.reshape({-1, x.size(-1)}));
    const auto bias_gradient = context->saved_data["bias"].toBool() ? rows.sum(0) : Tensor();
    return {scattered(gradients[0].matmul(saved[1].to(type)), ranks), weight_gradient, bias_gradient, Tensor()};
  }
};

struct VocabularyCrossEntropy : torch::autograd::Function<VocabularyCrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& target, Communicator* ranks) {
    const int64_t part = logits.size(-1);
    const auto rows = logits.reshape({-1, part});  // (tokens, vocab / n)
    auto largest = rows.amax(1);
    ranks->all_reduce(largest, ReduceOp::max);
    auto powers = (rows - largest.unsqueeze(1)).exp_();
    const auto local = target.reshape({-1, 1}) - ranks->rank() * part;
    const auto mine = (local >= 0).logical_and(local < part);
    const auto index = local.clamp(0, part - 1);
    const auto picked = (rows.gather(1, index).squeeze(1) - largest) * mine.squeeze(1);
    auto sums = torch::stack({powers.sum(1), picked});  // of the powers, and the target's logit: one rank has it
    ranks->all_reduce(sums);
    context->save_for_backward({powers.div_(sums[0].unsqueeze(1)), index, mine});
    context->saved_data["sizes"] = logits.sizes().vec();
    return (sums[0].log() - sums[1]).mean();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& softmax = saved[0];
    const auto scale = gradients[0] / static_cast<double>(softmax.size(0));
    auto gradient = softmax * scale;
    gradient.scatter_add_(1, saved[1], (saved[2] * -scale).to(gradient.scalar_type()));
    return {gradient.view(context->saved_data["sizes"].toIntVector()), Tensor(), Tensor()};
  }
};

int64_t pieces_of(const std::string& name) { return name.find("c_attn") != std::string::npos ? 3 : 1; }
int64_t dimension_of(const std::string& name) { return name.ends_with("c_proj.weight") ? 1 : 0; }

std::string shared_by(const ModelShape& shape, Sequence sequence) {
  std::string valid;
  for (int64_t n = 1; n <= shape.heads; ++n)
    if (shape.heads % n == 0 && shape.vocab % n == 0 && (sequence == Sequence::whole || shape.context % n == 0)) valid += fmt::format("{}{}", valid.empty() ? "" : ", ", n);
  return "tensor ranks: " + valid;
}

}  // namespace

Tensor copy_to_ranks(const Tensor& x, Communicator& ranks) { return exchange(x, Move::keep, ranks); }
Tensor sum_over_ranks(const Tensor& x, Communicator& ranks) { return exchange(x, Move::sum, ranks); }
Tensor gather_sequence(const Tensor& x, Communicator& ranks) { return exchange(x, Move::gather, ranks); }
Tensor scatter_sequence(const Tensor& x, Communicator& ranks) { return exchange(x, Move::scatter, ranks); }

std::vector<Tensor> replicated(const std::vector<Tensor>& parameters, const TensorSplit& split) {
  if (split.is_whole() || split.ranks.size() == 1) return parameters;
  return Replicated::apply(at::TensorList(parameters), &split.ranks);
}

Tensor column_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorSplit& split) {
  if (split.is_whole()) return torch::linear(copy_to_ranks(x, split.ranks), weight, bias);
  if (split.sequence == Sequence::split || split.ranks.size() == 1) return torch::linear(gather_sequence(x, split.ranks), weight, bias);
  return RegatherLinear::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, &split.ranks);
}

Tensor row_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorSplit& split) {
  const auto part = torch::linear(x, weight);
  return (split.is_whole() ? sum_over_ranks(part, split.ranks) : scatter_sequence(part, split.ranks)) + bias;
}

Tensor vocabulary_embedding(const Tensor& tokens, const Tensor& weight, const TensorSplit& split) {
  const int64_t part = weight.size(0);
  const auto local = tokens - split.ranks.rank() * part;
  const auto mine = (local >= 0).logical_and(local < part).unsqueeze(-1);
  const auto rows = torch::embedding(weight, local.clamp(0, part - 1)) * mine;  // zero where the token is another rank's
  return split.is_whole() ? sum_over_ranks(rows, split.ranks) : scatter_sequence(rows, split.ranks);
}

Tensor vocabulary_cross_entropy(const Tensor& logits, const Tensor& target, Communicator& ranks) {
  return VocabularyCrossEntropy::apply(logits, target, &ranks);
}

Tensor keyed_dropout(const Tensor& x, double probability, uint64_t key, int64_t first_sample, int64_t first_middle, int64_t middles) {
  if (probability == 0) return x;
  auto mask = torch::empty(x.sizes(), torch::kFloat);
  const int64_t samples = x.size(0), count = x.size(1), inner = samples && count ? x.numel() / (samples * count) : 0;
  const auto keep = static_cast<float>(1.0 / (1.0 - probability));
  float* out = mask.data_ptr<float>();
  for (int64_t sample = 0; sample < samples; ++sample)
    for (int64_t middle = 0; middle < count; ++middle) {
      const int64_t begin = ((first_sample + sample) * middles + first_middle + middle) * inner;
      for (int64_t i = 0; i < inner; ++i) *out++ = Random(key, static_cast<uint64_t>(begin + i)).chance(probability) ? 0.0F : keep;
    }
  return x * mask.to(x.options());
}

bool is_split(const std::string& name) {
  return name.ends_with("c_attn.weight") || name.ends_with("c_attn.bias") || name.ends_with("c_fc.weight") || name.ends_with("c_fc.bias") ||
         name.ends_with("c_proj.weight") || name.ends_with("wte.weight") || name.ends_with("lm_head.weight");
}

Tensor part_of(const std::string& name, const Tensor& whole, int rank, int ranks) {
  if (!is_split(name)) return whole;
  const int64_t dimension = dimension_of(name);
  std::vector<Tensor> mine;
  for (const Tensor& piece : whole.chunk(pieces_of(name), dimension)) {
    const int64_t size = piece.size(dimension) / ranks;
    mine.push_back(piece.narrow(dimension, rank * size, size));
  }
  return torch::cat(mine, dimension);
}

Tensor whole_of(const std::string& name, const Tensor& part, Communicator& ranks) {
  if (!is_split(name)) return part.detach().clone();
  torch::NoGradGuard no_grad;
  std::vector<int64_t> sizes{ranks.size()};
  sizes.insert(sizes.end(), part.sizes().begin(), part.sizes().end());
  auto all = torch::empty(sizes, part.options());
  ranks.all_gather(all, part.detach().contiguous());
  const int64_t dimension = dimension_of(name), pieces = pieces_of(name);
  std::vector<Tensor> in_order;
  for (int64_t piece = 0; piece < pieces; ++piece)
    for (int rank = 0; rank < ranks.size(); ++rank) in_order.push_back(all[rank].chunk(pieces, dimension)[piece]);
  return torch::cat(in_order, dimension);
}

void check_seeds(const torch::nn::Module& module, Communicator& ranks) {
  torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    const auto row = item.value().detach().reshape({-1});
    auto first = row.clone();
    ranks.broadcast(first, 0);
    const bool constant = row.numel() == 0 || (row == row[0]).all().item<bool>();  // biases begin with zeros everywhere
    const bool wrong = ranks.rank() > 0 && (is_split(item.key()) ? !constant && torch::equal(first, row) : !torch::equal(first, row));
    auto verdict = torch::tensor({wrong ? ranks.rank() : 0}, torch::kInt32).to(row.device());
    ranks.all_reduce(verdict, ReduceOp::max);
    const int liar = verdict.item<int>();
    if (liar && is_split(item.key()))
      throw disagree_error("checking seeds", fmt::format("{}: rank {}'s part is a copy of rank 0's", item.key(), liar), "draw a split parameter from (seed, name), and take this rank's part");
    if (liar) throw disagree_error("checking seeds", fmt::format("{} should be the same everywhere, and differs on rank {}", item.key(), liar), "the same seed on every rank for what is not split");
  }
}

void check_gpt_split(const ModelShape& shape, int ranks, Sequence sequence) {
  const auto refuse = [&](const std::string& cause) { throw usage_error("tensor parallel", cause, shared_by(shape, sequence)); };
  if (shape.heads % ranks) refuse(fmt::format("{} heads cannot be shared by {} ranks", shape.heads, ranks));
  if (shape.vocab % ranks) refuse(fmt::format("a vocabulary of {} cannot be shared by {} ranks", shape.vocab, ranks));
  if (sequence == Sequence::whole) return;
  if (shape.context < ranks) refuse(fmt::format("a sequence of {} is shorter than {} ranks", shape.context, ranks));
  if (shape.context % ranks) refuse(fmt::format("a sequence of {} cannot be shared by {} ranks", shape.context, ranks));
}

}  // namespace manyranks
