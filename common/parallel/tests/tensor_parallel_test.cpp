// Cut layers against the whole ones, which every rank also computes; and the grid of ranks that they run on.
#include <gtest/gtest.h>

#include "launch/errors.hpp"
#include "measure/verify.hpp"  // expect_close, expect_equal_bits
#include "parallel/mesh.hpp"
#include "parallel/tensor_parallel.hpp"
#include "parallel/tests/toy.hpp"  // drawn, world

namespace manyranks {
namespace {

using test::drawn;
using test::world;
using torch::Tensor;

// A matrix product cut in another way adds in another order: float64, and sums of 24 terms at most.
constexpr double close = 1e-12;

Tensor leaf(const Tensor& value) { return value.detach().clone().requires_grad_(); }

Tensor mine(const Tensor& whole, int64_t dimension) {
  const int64_t part = whole.size(dimension) / world().size();
  return whole.narrow(dimension, world().rank() * part, part);
}

void check_mlp(Sequence sequence) {
  const auto draw = [](std::vector<int64_t> sizes, uint64_t key) { return drawn(sizes, key, torch::kDouble); };
  const auto x = draw({2, 12, 8}, 1), w1 = draw({24, 8}, 2), b1 = draw({24}, 3), w2 = draw({8, 24}, 4),
             b2 = draw({8}, 5), up = draw({2, 12, 8}, 6);
  const std::vector<Tensor> dense{leaf(x), leaf(w1), leaf(b1), leaf(w2), leaf(b2)};
  const auto y = torch::linear(torch::relu(torch::linear(dense[0], dense[1], dense[2])), dense[3], dense[4]);
  y.backward(up);

  const TensorSplit split{world(), sequence};
  const auto here = [&](const Tensor& tensor) { return sequence == Sequence::whole ? tensor : mine(tensor, 1); };
  const std::vector<Tensor> part{leaf(here(x)), leaf(mine(w1, 0)), leaf(mine(b1, 0)), leaf(mine(w2, 1)), leaf(b2)};
  const auto hidden = torch::relu(column_linear(part[0], part[1], part[2], split));
  const auto out = row_linear(hidden, part[3], replicated({part[4]}, split)[0], split);
  out.backward(here(up));
  EXPECT_NO_THROW(expect_close("output", out.detach(), here(y.detach()), close));
  EXPECT_NO_THROW(expect_close("input gradient", part[0].grad(), here(dense[0].grad()), close));
  EXPECT_NO_THROW(expect_close("column weight", part[1].grad(), mine(dense[1].grad(), 0), close));
  EXPECT_NO_THROW(expect_close("column bias", part[2].grad(), mine(dense[2].grad(), 0), close));
  EXPECT_NO_THROW(expect_close("row weight", part[3].grad(), mine(dense[3].grad(), 1), close));
  EXPECT_NO_THROW(expect_close("row bias", part[4].grad(), dense[4].grad(), close));
}
TEST(TensorParallel, MlpWhole) { check_mlp(Sequence::whole); }
TEST(TensorParallel, MlpSplit) { check_mlp(Sequence::split); }
TEST(TensorParallel, MlpRegather) { check_mlp(Sequence::regather); }

// The four moves and their backward passes: sums in rank order, so bits.
TEST(TensorParallel, MovesAndTheirGradients) {
  const int n = world().size(), rank = world().rank();
  const auto of = [](int who, uint64_t key, std::vector<int64_t> sizes) {
    return drawn(sizes, key + 100 * static_cast<uint64_t>(who));
  };
  const auto sum_of = [&](uint64_t key, const std::vector<int64_t>& sizes) {
    Tensor sum = of(0, key, sizes);
    for (int r = 1; r < n; ++r) sum = sum + of(r, key, sizes);
    return sum;
  };
  const std::vector<int64_t> whole{2, 4 * n, 3}, part{2, 4, 3};
  const auto expect = [&](const std::string& name, const Tensor& got, const Tensor& expected) {
    EXPECT_NO_THROW(expect_equal_bits(name, got.detach().contiguous(), expected.detach().contiguous()));
  };
  auto x = leaf(of(rank, 1, whole));
  auto y = copy_to_ranks(x, world());
  expect("copy", y, x);
  y.backward(of(rank, 2, whole));
  expect("copy's gradient", x.grad(), sum_of(2, whole));

  x = leaf(of(rank, 3, whole));
  y = sum_over_ranks(x, world());
  expect("sum", y, sum_of(3, whole));
  y.backward(of(0, 4, whole));
  expect("sum's gradient", x.grad(), of(0, 4, whole));

  x = leaf(of(rank, 5, part));
  y = gather_sequence(x, world());
  std::vector<Tensor> parts;
  for (int r = 0; r < n; ++r) parts.push_back(of(r, 5, part));
  expect("gather", y, torch::cat(parts, 1));
  y.backward(of(rank, 6, whole));
  expect("gather's gradient", x.grad(), mine(sum_of(6, whole), 1));

  x = leaf(of(rank, 7, whole));
  y = scatter_sequence(x, world());
  expect("scatter", y, mine(sum_of(7, whole), 1));
  y.backward(of(rank, 8, part));
  parts.clear();
  for (int r = 0; r < n; ++r) parts.push_back(of(r, 8, part));
  expect("scatter's gradient", x.grad(), torch::cat(parts, 1));
}

TEST(TensorParallel, VocabularyCrossEntropy) {
  const auto logits = drawn({2, 12, 24}, 1, torch::kDouble);
  const auto target = torch::arange(24).view({2, 12}) * 5 % 24;  // every token once: each rank's, and the borders
  const auto dense = leaf(logits), part = leaf(mine(logits, 2));
  const auto expected = cross_entropy(dense, target), loss = vocabulary_cross_entropy(part, target, world());
  expected.backward();
  loss.backward();
  EXPECT_NO_THROW(expect_close("loss", loss.detach(), expected.detach(), close));
  EXPECT_NO_THROW(expect_close("gradient", part.grad(), mine(dense.grad(), 2), close));
}

TEST(TensorParallel, PartsMakeTheWhole) {
  const int n = world().size();
  for (const std::string name :
       {"h.0.attn.c_attn.weight", "h.0.mlp.c_fc.bias", "h.0.mlp.c_proj.weight", "ln_f.weight"}) {
    const auto whole = drawn(
        name.ends_with("bias") || name.starts_with("ln") ? std::vector<int64_t>{24} : std::vector<int64_t>{24, 24}, 3);
    EXPECT_TRUE(torch::equal(whole_of(name, part_of(name, whole, world().rank(), n), world()), whole)) << name;
  }
}

TEST(Mesh, SumsAlongEachAxis) {
  const int n = world().size(), rank = world().rank(), inner = n % 2 ? 1 : 2, outer = n / inner;
  const Mesh mesh(world(), {{"dp", outer}, {"tp", inner}});
  EXPECT_EQ(mesh.text(), fmt::format("dp {} x tp {}", outer, inner));
  EXPECT_EQ(mesh["dp"].rank(), rank / inner);
  EXPECT_EQ(mesh["tp"].rank(), rank % inner);
  auto along_tp = torch::tensor({rank}, torch::kInt64), along_dp = torch::tensor({rank}, torch::kInt64);
  mesh["tp"].all_reduce(along_tp);
  mesh["dp"].all_reduce(along_dp);
  int64_t tp = 0, dp = 0;
  for (int r = 0; r < n; ++r) {
    if (r / inner == rank / inner) tp += r;
    if (r % inner == rank % inner) dp += r;
  }
  EXPECT_EQ(along_tp.item<int64_t>(), tp);
  EXPECT_EQ(along_dp.item<int64_t>(), dp);
}

TEST(Mesh, RefusesWhatDoesNotFit) {
  const int n = world().size();
  for (const auto& [axes, words] :
       {std::pair<std::vector<Mesh::Axis>, std::string>{{{"dp", n + 1}, {"tp", 1}},
                                                        fmt::format("{} ranks, and there are {}", n + 1, n)},
        {{{"dp", 0}, {"tp", n}}, "dp is 0"}})
    try {
      const Mesh mesh(world(), axes);
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.code, Exit::usage);
      EXPECT_NE(error.cause.find(words), std::string::npos) << error.cause;
    }
}

}  // namespace
}  // namespace manyranks
