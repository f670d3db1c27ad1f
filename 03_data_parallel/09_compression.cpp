// Fewer bytes for a gradient: half precision, and PowerSGD, which sends a matrix as the product of two thin ones.
//
// You learn   what lossy compression saves and costs; error feedback: what was not sent this time is added next time, so that
//             nothing is lost for good; why the sum of compressed gradients must still be a sum (Vogels et al. 2019).
// Run it      mpirun -np 2 build/03_data_parallel/09_compression --rank 2
//             mpirun -np 4 build/03_data_parallel/09_compression --rank 1 --no-feedback
// You see     bytes per step against the loss reached in the same steps:
//               exchange                       bytes/step  saved   loss
//               float32                         462.0 KiB   1.0x  2.015
//               powersgd, rank 2                 11.2 KiB  41.1x  2.025
//               powersgd, rank 1                  6.1 KiB  75.2x  2.062
//               powersgd, rank 1, no feedback     6.1 KiB  75.2x  2.293
// Read next   10_large_batch.cpp
#include "workload.hpp"  // Samples, load_digits, expect_same

#include "data/digits.hpp"            // Digits
#include "measure/provenance.hpp"     // write_row
#include "measure/table.hpp"          // Table, format_bytes
#include "measure/verify.hpp"         // expect_close, expect_equal_bits
#include "parallel/replicate.hpp"     // replicate
#include "parallel/strategy.hpp"      // make_sgd
#include "train/flat_parameters.hpp"  // FlatParameters

using namespace manyranks;

namespace {

// Gram-Schmidt on the columns of (m, r). The same input gives the same bits, so that all ranks stay together.
void orthonormalise(torch::Tensor matrix) {
  for (int64_t i = 0; i < matrix.size(1); ++i) {
    auto column = matrix.select(1, i);
    for (int64_t j = 0; j < i; ++j) column.sub_(matrix.select(1, j) * torch::dot(matrix.select(1, j), column));
    column.div_(column.norm() + 1e-12);
  }
}

// One matrix (m, n) as P (m, r) times Q^T (r, n): r(m + n) numbers in place of mn. One power iteration per step, started from
// the last step's Q, which is still nearly right.
class PowerSgd {
 public:
  PowerSgd(const torch::Tensor& parameter, int64_t rank, bool feedback)
      : rows_(parameter.size(0)), columns_(parameter.numel() / rows_), rank_(std::min({rank, rows_, columns_})), feedback_(feedback) {
    q_ = torch::randn({columns_, rank_}, at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rows_ * 1000003 + columns_)));
    error_ = torch::zeros({rows_, columns_});
  }
  bool worth_it() const { return rank_ * (rows_ + columns_) < rows_ * columns_; }

  // The gradient becomes the (compressed) sum over ranks.
  void exchange(Communicator& world, torch::Tensor gradient) {
    auto matrix = gradient.view({rows_, columns_});
    if (feedback_) matrix.add_(error_);
    auto p = matrix.mm(q_);                       // (m, r): linear in the gradient, so it may be summed over ranks
    world.all_reduce(p);
    orthonormalise(p);
    q_ = matrix.t().mm(p);                        // (n, r): likewise
    auto mine = p.mm(q_.t());                     // what this rank managed to say
    if (feedback_) error_ = matrix - mine;
    world.all_reduce(q_);
    matrix.copy_(p.mm(q_.t()));
  }

 private:
  int64_t rows_, columns_, rank_;
  bool feedback_;
  torch::Tensor q_, error_;
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options, launch, data: something to learn, or the loss would say nothing.
    Options options("03_data_parallel/09_compression", "half precision and PowerSGD: bytes saved against loss reached");
    int64_t rank = 2;
    bool no_feedback = false;
    options.add("--rank", rank, "columns of PowerSGD's two matrices").positive();
    options.add("--no-feedback", no_feedback, "forget what was not sent");
    process.start(options);
    Communicator& world = process.world();
    const int64_t steps = options.steps_or(200, 20), verified = std::min<int64_t>(200, steps),
                  batch = options.batch_or(32);
    const double rate = 0.02;
    const Samples data = load_digits(Digits(Split::train, options.seed, options.quick ? 512 : 4096));

    // 2. One training run per way to exchange.
    struct Result {
      std::vector<torch::Tensor> parameters;
      double loss = 0, bytes = 0;
    };
    const auto run = [&](const std::string& kind, int64_t columns, int64_t steps) {
      torch::manual_seed(options.seed);
      auto model = make_model("mlp", usual_shape("mlp"));
      replicate(world, *model);
      FlatParameters flat(*model);
      auto optimizer = make_sgd(0.9)(flat.parameters(), flat.gradients());
      std::vector<std::unique_ptr<PowerSgd>> matrices;
      for (const auto& slot : flat.slots())
        matrices.push_back(slot.parameter.dim() > 1 ? std::make_unique<PowerSgd>(slot.parameter, columns, !no_feedback)
                                                    : nullptr);
      world.reset_traffic();
      double loss_sum = 0;
      const int64_t tail = std::max<int64_t>(1, steps / 10);
      for (int64_t step = 0; step < steps; ++step) {
        process.set_step(step);
        const auto indices = (torch::arange(batch) + (step * world.size() + world.rank()) * batch) % data.y.numel();
        flat.zero_grad();
        const auto loss = cross_entropy(model->forward(data.x.index_select(0, indices)), data.y.index_select(0, indices));
        check_finite(loss);
        loss.backward();
        if (step + tail >= steps) loss_sum += loss.item<double>();
        // The lesson: three ways to make every rank hold the sum, or something like it.
        if (kind == "float32") world.all_reduce(flat.gradients());
        if (kind == "float16") {
          auto half = (flat.gradients() / world.size()).to(torch::kHalf);  // averaged first: 65504 is the largest
          world.all_reduce(half);
          flat.gradients().copy_(half).mul_(world.size());
        }
        if (kind == "powersgd")
          for (size_t i = 0; i < matrices.size(); ++i) {
            const auto& gradient = flat.slots()[i].parameter.grad();
            if (matrices[i] && matrices[i]->worth_it()) {
              matrices[i]->exchange(world, gradient);
            } else {
              world.all_reduce(gradient);
            }
          }
        optimizer->step(rate, 1.0 / world.size());
      }
      Result result{{}, loss_sum / static_cast<double>(tail), static_cast<double>(world.traffic().bytes_sent) / static_cast<double>(steps)};
      for (const auto& slot : flat.slots()) result.parameters.push_back(slot.parameter.detach());
      auto loss = torch::tensor({result.loss}, torch::kDouble);
      world.all_reduce(loss);
      result.loss = loss.item<double>() / world.size();
      return result;
    };

    // 3. Verify: whatever was lost, all ranks lost the same; and the exchange without loss equals a serial run.
    const auto agree = [&](const std::string& name, const Result& result) {
      for (const auto& tensor : result.parameters) {
        auto first = tensor.clone();
        world.broadcast(first, 0);
        expect_equal_bits(name + ": parameter against rank 0's", tensor, first);
      }
    };
    Result exact = run("float32", 0, verified), half = run("float16", 0, verified),
           power = run("powersgd", rank, verified);
    agree("float32", exact), agree("float16", half), agree("powersgd", power);
    torch::manual_seed(options.seed);
    {
      auto model = make_model("mlp", usual_shape("mlp"));
      FlatParameters flat(*model);
      auto optimizer = make_sgd(0.9)(flat.parameters(), flat.gradients());
      for (int64_t step = 0; step < verified; ++step) {
        flat.zero_grad();
        for (int r = 0; r < world.size(); ++r) {
          const auto indices = (torch::arange(batch) + (step * world.size() + r) * batch) % data.y.numel();
          cross_entropy(model->forward(data.x.index_select(0, indices)), data.y.index_select(0, indices)).backward();
        }
        optimizer->step(rate, 1.0 / world.size());
      }
      std::vector<torch::Tensor> expected;
      for (const auto& slot : flat.slots()) expected.push_back(slot.parameter.detach());
      const std::string words = expect_same(sums_in_rank_order(world), "parameter", exact.parameters, expected, 1e-2);  // hundreds of steps of another order of sums
      if (process.is_root())
        fmt::print("  float32: parameters {} after {} steps; all ranks agree bit by bit in every variant\n", words,
                   verified);
    }
    if (options.verify_only) return;
    if (steps > verified)
      exact = run("float32", 0, steps), half = run("float16", 0, steps), power = run("powersgd", rank, steps);

    // 4. Report.
    Table table({"exchange", "bytes/step", "saved", "loss"});
    const std::string name = fmt::format("powersgd, rank {}{}", rank, no_feedback ? ", no feedback" : "");
    for (const auto& [variant, result] : {std::pair{std::string("float32"), exact}, {"float16", half}, {name, power}}) {
      table.add({variant, format_bytes(static_cast<int64_t>(result.bytes)), result.bytes > 0 ? fmt::format("{:.1f}x", exact.bytes / result.bytes) : "-", fmt::format("{:.3f}", result.loss)});
      Row row;
      fill(row, world);
      row.set("variant", variant).set("workload", "mlp on digits").set("kind", "measured").set("batch", batch).set("sent_bytes", result.bytes).set("loss", result.loss);
      write_row(process, row);
    }
    if (process.is_root()) fmt::print("{}", table.text(2));
  });
}
