// Each cut layer against the whole one that every rank also computes: values and gradients.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/tests/rank_main.hpp"  // world
#include "launch/errors.hpp"
#include "measure/verify.hpp"        // expect_equal_bits, expect_close
#include "models/model.hpp"
#include "parallel/mesh.hpp"
#include "parallel/parallel_gpt.hpp"
#include "parallel/tensor_parallel.hpp"

namespace manyranks {
namespace {

using test::world;
using torch::Tensor;

constexpr double close = 1e-10;

// The same on every rank and for every order of calls.
Tensor drawn(std::vector<int64_t> sizes, uint64_t seed, torch::Dtype dtype = torch::kDouble) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), torch::TensorOptions().dtype(dtype));
}

Tensor leaf(const Tensor& value) { return value.detach().clone().requires_grad_(); }

Tensor mine(const Tensor& whole, int64_t dimension) {
  const int64_t part = whole.size(dimension) / world().size();
  return whole.narrow(dimension, world().rank() * part, part);
}

template <class Action>
void expect_code(Exit code, const std::string& text, Action action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code), static_cast<int>(code));
    const std::string line = std::string(error.what()) + "; try: " + error.hint;
    EXPECT_NE(line.find(text), std::string::npos) << line;
  }
}

// A column of a matrix product is a sum that knows nothing of its neighbours, but the library picks its kernel, and with it the order of
// that sum, by shape and CPU: a part may have other bits than the same columns of the whole. What holds on every CPU: a sum of n
// products, in any order, with or without fused multiply-adds, is within g(n) = n u / (1 - n u) of the exact one, times the sum of the
// absolute values (u = 2^-24 for float; Higham, Accuracy and Stability, 3.1). Two such sums differ by twice that at most.
Tensor bound(int64_t terms, const Tensor& absolute_sum) {
  const double nu = static_cast<double>(terms) * std::ldexp(1.0, -24);
  return absolute_sum * (2 * nu / (1 - nu));
}

void expect_within(const std::string& name, const Tensor& got, const Tensor& expected, const Tensor& limit) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << name;
  const auto difference = (got.to(torch::kDouble) - expected.to(torch::kDouble)).abs();
  EXPECT_TRUE((difference <= limit).all().item<bool>()) << name << ": up to " << (difference / limit).max().item<double>() << " of the bound";
}

TEST(Column, ForwardAndGradientsWithinTheBoundOfTheirSums) {
  int shapes = 0;
  for (const int64_t rows : {1, 2, 7, 16, 33, 96})
    for (const int64_t inputs : {1, 5, 48, 130})
      for (const int64_t outputs : {12, 24, 48, 96, 144, 192, 240, 384}) {
        const auto x = drawn({1, rows, inputs}, 1, torch::kFloat), w = drawn({outputs, inputs}, 2, torch::kFloat), b = drawn({outputs}, 3, torch::kFloat);
        const auto up = drawn({1, rows, outputs}, 4, torch::kFloat);
        const auto dense_w = leaf(w), dense_b = leaf(b), part_w = leaf(mine(w, 0)), part_b = leaf(mine(b, 0));
        const auto dense = torch::linear(x, dense_w, dense_b);
        const auto part = column_linear(x, part_w, part_b, {world()});
        dense.backward(up);
        part.backward(mine(up, 2).contiguous());
        const std::string name = fmt::format("{} x {} -> {}, ", rows, inputs, outputs);
        const auto ax = x.abs().to(torch::kDouble), aw = w.abs().to(torch::kDouble), ab = b.abs().to(torch::kDouble), au = up.abs().to(torch::kDouble);
        expect_within(name + "output", part.detach(), mine(dense.detach(), 2), mine(bound(inputs + 1, torch::linear(ax, aw, ab)), 2));
        expect_within(name + "weight gradient", part_w.grad(), mine(dense_w.grad(), 0), mine(bound(rows, au[0].t().mm(ax[0])), 0));
        expect_within(name + "bias gradient", part_b.grad(), mine(dense_b.grad(), 0), mine(bound(rows, au[0].sum(0)), 0));
        ++shapes;
      }
  EXPECT_EQ(shapes, 192);
}

// Column, GELU, row: the input's gradient needs f, the output g, the row's bias must be added once.
void check_mlp(Sequence sequence) {
  const auto x = drawn({2, 12, 8}, 1), w1 = drawn({24, 8}, 2), b1 = drawn({24}, 3), w2 = drawn({8, 24}, 4), b2 = drawn({8}, 5), up = drawn({2, 12, 8}, 6);
  const std::vector<Tensor> dense{leaf(x), leaf(w1), leaf(b1), leaf(w2), leaf(b2)};
  const auto y = torch::linear(torch::gelu(torch::linear(dense[0], dense[1], dense[2])), dense[3], dense[4]);
  y.backward(up);

  const TensorSplit split{world(), sequence};
  const bool whole = sequence == Sequence::whole;
  const auto here = [&](const Tensor& tensor) { return whole ? tensor : mine(tensor, 1); };
  const std::vector<Tensor> part{leaf(here(x)), leaf(mine(w1, 0)), leaf(mine(b1, 0)), leaf(mine(w2, 1)), leaf(b2)};
  const auto hidden = torch::gelu(column_linear(part[0], part[1], part[2], split));
  const auto out = row_linear(hidden, part[3], replicated({part[4]}, split)[0], split);
  out.backward(here(up));
  EXPECT_NO_THROW(expect_close("output", out.detach(), here(y.detach()), close));
  EXPECT_NO_THROW(expect_close("input gradient", part[0].grad(), here(dense[0].grad()), close));
  EXPECT_NO_THROW(expect_close("column weight", part[1].grad(), mine(dense[1].grad(), 0), close));
  EXPECT_NO_THROW(expect_close("column bias", part[2].grad(), mine(dense[2].grad(), 0), close));
  EXPECT_NO_THROW(expect_close("row weight", part[3].grad(), mine(dense[3].grad(), 1), close));
  EXPECT_NO_THROW(expect_close("row bias", part[4].grad(), dense[4].grad(), close));
}
TEST(Mlp, Whole) { check_mlp(Sequence::whole); }
TEST(Mlp, Split) { check_mlp(Sequence::split); }
TEST(Mlp, Regather) { check_mlp(Sequence::regather); }

TEST(Vocabulary, Embedding) {
  for (const Sequence sequence : {Sequence::whole, Sequence::split}) {
    const auto table = drawn({24, 6}, 1), up = drawn({2, 12, 6}, 2);
    const auto tokens = torch::arange(24).view({2, 12}) * 7 % 24;  // every token once: each rank's, and the borders
    const auto dense = leaf(table), part = leaf(mine(table, 0));
    const auto y = torch::embedding(dense, tokens);
    y.backward(up);
    const auto out = vocabulary_embedding(tokens, part, {world(), sequence});
    out.backward(sequence == Sequence::whole ? up : mine(up, 1));
    EXPECT_NO_THROW(expect_close("rows", out.detach(), sequence == Sequence::whole ? y.detach() : mine(y.detach(), 1), close));
    EXPECT_NO_THROW(expect_close("table gradient", part.grad(), mine(dense.grad(), 0), close));
  }
}

TEST(Vocabulary, CrossEntropy) {
  for (const double scale : {1.0, 1e4}) {  // exp(1e4) is infinite: the largest must be taken over all ranks first
    const auto logits = drawn({2, 12, 24}, 1) * scale;
    const auto target = torch::arange(24).view({2, 12}) * 5 % 24;
    const auto dense = leaf(logits), part = leaf(mine(logits, 2));
    const auto expected = cross_entropy(dense, target) * 3;
    const auto loss = vocabulary_cross_entropy(part, target, world()) * 3;  // a loss that something else follows
    expected.backward();
    loss.backward();
    EXPECT_NO_THROW(expect_close("loss", loss.detach(), expected.detach(), close));
    EXPECT_NO_THROW(expect_close("logits gradient", part.grad(), mine(dense.grad(), 2), close));
  }
}

TEST(Vocabulary, CrossEntropyMovesThreeNumbersPerToken) {
  const int64_t tokens = 2400, n = world().size();  // beyond 8 KiB, below which every rank reads all parts at once
  world().reset_traffic();
  vocabulary_cross_entropy(mine(drawn({2, 1200, 24}, 1), 2), torch::zeros({2, 1200}, torch::kLong), world());
  auto sent = torch::tensor({world().traffic().bytes_sent}, torch::kLong);
  world().all_reduce(sent);  // over all ranks: one may have a few elements more than another
  EXPECT_EQ(sent.item<int64_t>(), 2 * (n - 1) * 3 * tokens * 8);
}

TEST(Dropout, PartsOfOneMask) {
  const auto x = torch::ones({3, 12, 50});
  const auto whole = keyed_dropout(x, 0.25, 9, 0, 0, 12);
  EXPECT_NEAR((whole == 0).to(torch::kDouble).mean().item<double>(), 0.25, 0.03);
  EXPECT_NEAR(whole.max().item<double>(), 1 / 0.75, 1e-6);
  EXPECT_TRUE(torch::equal(keyed_dropout(mine(x, 1), 0.25, 9, 0, world().rank() * (12 / world().size()), 12), mine(whole, 1)));
  EXPECT_TRUE(torch::equal(keyed_dropout(x.narrow(0, 1, 2), 0.25, 9, 1, 0, 12), whole.narrow(0, 1, 2)));  // a data rank's samples
  EXPECT_FALSE(torch::equal(keyed_dropout(x, 0.25, 10, 0, 0, 12), whole));
  EXPECT_FALSE(torch::equal(whole[0], whole[1]));
}

TEST(Parts, ThereAndBack) {
  for (const auto& [name, sizes] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"h.0.attn.c_attn.weight", {36, 5}}, {"h.0.attn.c_attn.bias", {36}}, {"h.0.attn.c_proj.weight", {5, 12}}, {"h.0.attn.c_proj.bias", {5}},
           {"h.0.mlp.c_fc.weight", {48, 5}}, {"h.0.mlp.c_proj.weight", {5, 48}}, {"wte.weight", {24, 5}}, {"lm_head.weight", {24, 5}}, {"wpe.weight", {7, 5}}}) {
    const auto whole = drawn(sizes, 3);
    const auto part = part_of(name, whole, world().rank(), world().size());
    EXPECT_EQ(part.numel(), is_split(name) ? whole.numel() / world().size() : whole.numel()) << name;
    EXPECT_TRUE(torch::equal(whole_of(name, part, world()), whole)) << name;
  }
  // Queries, keys and values of the same heads belong together.
  const auto rows = part_of("c_attn.bias", torch::arange(36), 1, 3);
  EXPECT_TRUE(torch::equal(rows, torch::tensor({4, 5, 6, 7, 16, 17, 18, 19, 28, 29, 30, 31})));
}

ModelShape small() {
  ModelShape shape = usual_shape("gpt");
  shape.width = 24, shape.heads = 12, shape.layers = 1, shape.vocab = 36, shape.context = 12;
  return shape;
}

TEST(Seeds, Right) {
  const ParallelGpt model(small(), world());
  EXPECT_NO_THROW(check_seeds(model, world()));
}

// torch::manual_seed(seed) on every rank, and each draws its part: all parts are copies.
TEST(Seeds, SameSeedForSplitParameters) {
  if (world().size() == 1) return;
  const ParallelGpt model(small(), world());
  torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters())
    if (is_split(item.key()) && !item.key().ends_with("bias")) item.value().normal_(0, 0.02, at::make_generator<at::CPUGeneratorImpl>(1));
  expect_code(Exit::disagree, "wte.weight: rank", [&] { check_seeds(model, world()); });
}

// torch::manual_seed(seed + rank), and each draws all: the positions differ.
TEST(Seeds, OtherSeedForReplicatedParameters) {
  if (world().size() == 1) return;
  const ParallelGpt model(small(), TensorSplit{world()}, RandomKeys{.seed = 1 + static_cast<uint64_t>(world().rank())});
  expect_code(Exit::disagree, "wpe.weight should be the same everywhere", [&] { check_seeds(model, world()); });
}

TEST(BadSplits, ListTheValidOnes) {
  ModelShape shape = small();
  expect_code(Exit::usage, "12 heads cannot be shared by 5 ranks; try: tensor ranks: 1, 2, 3, 4, 6, 12", [&] { check_gpt_split(shape, 5, Sequence::whole); });
  shape.vocab = 34;
  expect_code(Exit::usage, "a vocabulary of 34 cannot be shared by 3 ranks; try: tensor ranks: 1, 2", [&] { check_gpt_split(shape, 3, Sequence::whole); });
  shape.vocab = 36, shape.context = 10;
  EXPECT_NO_THROW(check_gpt_split(shape, 4, Sequence::whole));
  expect_code(Exit::usage, "a sequence of 10 cannot be shared by 4 ranks; try: tensor ranks: 1, 2", [&] { check_gpt_split(shape, 4, Sequence::split); });
  shape.context = 3;
  expect_code(Exit::usage, "a sequence of 3 is shorter than 4 ranks; try: tensor ranks: 1, 3", [&] { check_gpt_split(shape, 4, Sequence::regather); });
}

TEST(MeshTest, Coordinates) {
  const int n = world().size();
  for (int inner = 1; inner <= n; ++inner) {
    if (n % inner) continue;
    const Mesh mesh(world(), {{"dp", n / inner}, {"tp", inner}});
    EXPECT_EQ(mesh["tp"].rank(), world().rank() % inner);
    EXPECT_EQ(mesh["dp"].rank(), world().rank() / inner);
    EXPECT_EQ(mesh["tp"].size(), inner);
    auto sum = torch::tensor({world().rank()}, torch::kLong);
    mesh["dp"].all_reduce(sum);  // rank, rank + inner, ...
    int expected = 0;
    for (int rank = world().rank() % inner; rank < n; rank += inner) expected += rank;
    EXPECT_EQ(sum.item<int>(), expected);
  }
}

TEST(MeshTest, RefusesAnotherProduct) {
  const int n = world().size();
  expect_code(Exit::usage, fmt::format("dp 1 x tp {} is {} ranks, and there are {}", n + 1, n + 1, n), [&] { Mesh(world(), {{"dp", 1}, {"tp", n + 1}}); });
  if (n == 4) expect_code(Exit::usage, "dp x tp of: 1 x 4, 2 x 2, 4 x 1", [&] { Mesh(world(), {{"dp", 2}, {"tp", 4}}); });
  expect_code(Exit::usage, "tp is 0", [&] { Mesh(world(), {{"tp", 0}}); });
}

}  // namespace
}  // namespace manyranks
