// Tensor parallelism: every rank works on every layer, on a part of its weights.
//
// You learn   the two ways to cut a matrix product: by outputs (columns: nothing to exchange) and by inputs (rows: one sum at the
//             end); why one behind the other needs only that one sum; and that in backward it is the mirror image: f and g.
//               x ──f── [ W1 columns ] ─ gelu ─ [ W2 rows ] ──g── y      f: forward nothing, backward all-reduce
//                                                                        g: forward all-reduce, backward nothing
// Run it      mpirun -np 2 build/04_model_parallel/02_column_row
//             mpirun -np 4 build/04_model_parallel/02_column_row --width 768 --tokens 1024
// You see     whether the column part has the dense bits on this CPU, the block within 1e-10 of dense (fp64), and what it costs (--quick):
//               quantity               predicted  measured   error
//               all-reduces, forward           1         1  +0.00%
//               all-reduces, backward          1         1  +0.00%
//               bytes sent per step     36.0 KiB  36.0 KiB  +0.00%
// Read next   ../common/parallel/tensor_parallel.cpp, where f and g become a family; then 03_transformer_block.cpp
#include "workload.hpp"  // relative_difference, largest_over, for_exchange

#include <cmath>

#include "measure/comparison.hpp"  // Comparison
#include "measure/provenance.hpp"  // write_row, fill
#include "measure/table.hpp"       // format_seconds
#include "measure/timer.hpp"       // time_steps
#include "measure/verify.hpp"      // expect_close

using namespace manyranks;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// Before a column-parallel layer. All ranks have the same x; each finds the part of its gradient that went through its own
// columns, and x needs the sum of them.
struct F : torch::autograd::Function<F> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Communicator* world) {
    context->saved_data["world"] = reinterpret_cast<int64_t>(world);
    return x;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto* world = reinterpret_cast<Communicator*>(context->saved_data["world"].toInt());
    auto sum = gradients[0].clone();
    world->all_reduce(sum);
    return {sum, Tensor()};
  }
};

// Behind a row-parallel layer. y is the sum of the ranks' parts; the gradient of a sum is the gradient of each addend.
struct G : torch::autograd::Function<G> {
  static Tensor forward(AutogradContext*, const Tensor& part, Communicator* world) {
    auto sum = part.clone();
    world->all_reduce(sum);
    return sum;
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return {gradients[0], Tensor()}; }
};

// The MLP of a transformer: C -> 4C -> C. Dense or this rank's part of it, it is the same code: with one rank f and g do nothing.
struct Mlp {
  Tensor w1, b1;  // (4C/n, C), (4C/n): rows of the weight are columns of its transpose, which x is multiplied with
  Tensor w2, b2;  // (C, 4C/n), (C)
  Communicator* world = nullptr;

  Tensor forward(Tensor x) const {  // (tokens, C)
    if (world) x = F::apply(x, world);
    const auto hidden = torch::gelu(torch::linear(x, w1, b1));  // elementwise: what is cut stays cut
    auto y = torch::linear(hidden, w2);
    if (world) y = G::apply(y, world);
    return y + b2;  // once, not n times
  }
  std::vector<Tensor> parameters() const { return {w1, b1, w2, b2}; }
};

Mlp make_dense(int64_t width, uint64_t seed, torch::TensorOptions where) {
  auto random = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto draw = [&](std::vector<int64_t> sizes) { return torch::randn(sizes, random).mul_(0.05).to(where).requires_grad_(); };
  Mlp mlp;
  mlp.w1 = draw({4 * width, width}), mlp.b1 = draw({4 * width}), mlp.w2 = draw({width, 4 * width}), mlp.b2 = draw({width});
  return mlp;
}

// Rank r's columns of W1 and b1, its rows of W2; b2 is everybody's.
Mlp cut(const Mlp& dense, Communicator& world) {
  const int64_t part = dense.w1.size(0) / world.size(), begin = world.rank() * part;
  const auto own = [](const Tensor& view) { return view.detach().clone().requires_grad_(); };
  return {own(dense.w1.narrow(0, begin, part)), own(dense.b1.narrow(0, begin, part)), own(dense.w2.narrow(1, begin, part)), own(dense.b2), &world};
}

// Float sums of `terms` products: each is within n u / (1 - n u) of the exact one, in units of the sum of absolute values, in whatever order
// it was added (u = 2^-24). Two of them may differ by twice that; more is a fault, less is this CPU. TF32 on a GPU rounds inputs to 2^-11.
void compare_sums(Process& process, const std::string& what, const Tensor& part, const Tensor& dense, int64_t terms, const Tensor& absolute_sum) {
  const double nu = static_cast<double>(terms) * std::ldexp(1.0, part.is_cuda() && at::globalContext().allowTF32CuBLAS() ? -11 : -24);
  const auto difference = (part.to(torch::kDouble) - dense.to(torch::kDouble)).abs(), bound = absolute_sum * (2 * nu / (1 - nu));
  const double share = largest_over(process.world(), (difference / bound).max().item<double>());
  const double largest = largest_over(process.world(), difference.max().item<double>());
  auto other = for_exchange(process.world(), (difference != 0).sum().to(torch::kLong).reshape({1}));
  process.world().all_reduce(other);
  const int64_t differ = other.item<int64_t>(), all = dense.numel() * process.world_size();
  if (!(share <= 1))
    throw verify_error("column-parallel " + what, fmt::format("differs from dense by {:.1e}, {:.1f} times what rounding explains",
                                                              largest, share));
  if (process.is_root())
    fmt::print("  column-parallel {}: {} of {} elements differ from dense on this CPU, by {:.1e} at most ({:.2f} of the bound)\n",
               what, differ, all, largest, share);
}

void step(const Mlp& mlp, const Tensor& x, const Tensor& target) {
  (mlp.forward(x) - target).square().mean().backward();
  torch::NoGradGuard no_grad;
  for (auto parameter : mlp.parameters()) {
    parameter.sub_(parameter.grad(), 0.5);
    parameter.mutable_grad() = Tensor();
  }
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("04_model_parallel/02_column_row", "column- and row-parallel layers, f and g");
    int64_t width = 384, tokens = 512;
    options.add("--width", width, "C").positive();
    options.add("--tokens", tokens, "rows of x").positive();
    process.start(options);
    Communicator& world = process.world();
    if (options.quick) width = 48, tokens = 96;
    if (4 * width % world.size()) throw usage_error("--width", fmt::format("{} hidden units cannot be shared by {} ranks", 4 * width, world.size()), fmt::format("--width {}", width / world.size() * world.size() + world.size()));
    const int64_t part = 4 * width / world.size(), steps = std::min<int64_t>(20, options.steps_or(20, 20));  // verified
    const auto fp32 = torch::TensorOptions(process.device()).dtype(torch::kFloat), fp64 = fp32.dtype(torch::kDouble);
    const auto sample = [&](uint64_t key, torch::TensorOptions where) { return torch::randn({tokens, width}, at::make_generator<at::CPUGeneratorImpl>(options.seed * 1000 + key)).to(where); };

    // 2. Verify the column-parallel layer by itself. A column of a product does not know its neighbours: exactly computed, it is the
    //    dense one. In floats the math library picks a kernel, and so the order of each sum, by shape and CPU: the bits may differ.
    {
      const Mlp dense = make_dense(width, options.seed, fp32), mine = cut(dense, world);
      const auto x = sample(1, fp32), gradient = torch::randn({tokens, 4 * width}, at::make_generator<at::CPUGeneratorImpl>(2)).to(fp32);
      const auto here = [&](const Tensor& whole, int64_t dimension) { return whole.detach().narrow(dimension, world.rank() * part, part); };
      const auto y = torch::linear(x, dense.w1, dense.b1), y_part = torch::linear(x, mine.w1, mine.b1);
      y.backward(gradient);
      y_part.backward(here(gradient, 1).contiguous());
      const auto absolute = [](const Tensor& t) { return t.detach().abs().to(torch::kDouble); };
      const auto ax = absolute(x), ag = absolute(here(gradient, 1));
      compare_sums(process, "output", y_part.detach(), here(y, 1), width + 1, torch::linear(ax, absolute(mine.w1), absolute(mine.b1)));
      compare_sums(process, "weight gradient", mine.w1.grad(), here(dense.w1.grad(), 0), tokens, ag.t().mm(ax));
    }

    // 3. Verify the block in fp64, over training steps: sums in another order, so nearly.
    const Mlp dense = make_dense(width, options.seed, fp64), mine = cut(dense, world);
    for (int64_t i = 0; i < steps; ++i) {
      process.set_step(i);
      step(dense, sample(10 + 2 * static_cast<uint64_t>(i), fp64), sample(11 + 2 * static_cast<uint64_t>(i), fp64));
      step(mine, sample(10 + 2 * static_cast<uint64_t>(i), fp64), sample(11 + 2 * static_cast<uint64_t>(i), fp64));
    }
    const std::vector<Tensor> expected = cut(dense, world).parameters();
    expect_close("parameters after training", mine.parameters(), expected, 1e-10);
    const double difference = largest_over(world, relative_difference(mine.parameters(), expected));
    if (process.is_root()) fmt::print("  after {} steps the parameters differ from dense by {:.1e} (norm-relative, fp64)\n", steps, difference);

    // 4. Count: one all-reduce of (tokens, C) each way, whatever the number of hidden units.
    const Mlp dense32 = make_dense(width, options.seed, fp32), mine32 = cut(dense32, world);
    const auto x = sample(1, fp32).requires_grad_(), target = sample(2, fp32);
    world.reset_traffic();
    const auto y = mine32.forward(x);
    const double forward_calls = static_cast<double>(world.traffic().calls);
    (y - target).square().mean().backward();
    const double sent = static_cast<double>(world.traffic().bytes_sent), n = world.size();
    const double predicted = 2 * 2 * (n - 1) / n * 4 * static_cast<double>(tokens * width);
    Comparison comparison;
    comparison.count("all-reduces, forward", 1, forward_calls);  // with one rank too: a call that moves nothing
    comparison.count("all-reduces, backward", 1, static_cast<double>(world.traffic().calls) - forward_calls);
    comparison.bytes("bytes sent per step", predicted, sent);
    comparison.count("parameters per rank", static_cast<double>((8 * width * width + 4 * width) / world.size() + width), static_cast<double>(mine32.w1.numel() + mine32.b1.numel() + mine32.w2.numel() + mine32.b2.numel()));
    if (process.is_root()) fmt::print("{}", comparison.text());
    if (world.size() > 1 && comparison.worst() > 0.01) throw verify_error("communication", "not what the formula says");
    if (options.verify_only) return;

    // 5. Time: every rank by itself with the dense block, and all together with their parts.
    const int64_t timed = options.steps_or(20, 3);
    const Timing whole = time_steps(world, 2, timed, [&] { step(dense32, x.detach(), target); });
    const Timing parts = time_steps(world, 2, timed, [&] { step(mine32, x.detach(), target); });
    if (process.is_root()) fmt::print("  step: dense {}, in {} part(s) {}\n", format_seconds(whole.median), world.size(), format_seconds(parts.median));
    Row row;
    fill(row, world);
    fill(row, parts);
    row.set("variant", "column_row").set("workload", "mlp block").set("kind", "measured").set("dtype", "float32").set("batch", tokens).set("compute_s", whole.median / n);
    row.set("sent_bytes", sent).set("predicted", predicted).set("measured", sent).set("unit", "bytes/step");
    write_row(process, row);
  });
}
