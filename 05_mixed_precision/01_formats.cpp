// What a number is in fp32, TF32, fp16, bf16 and fp8; and a training run that fails in fp16 although not one number is too large.
//
// You learn   that range comes from exponent bits and precision from mantissa bits; that gradients are small, spread over many powers of
//             two, and that what lies below 2^-25 is zero in fp16. The loss of this run is divided by 65536, as a mean over the tokens or
//             pixels of a large global batch divides it, and the learning rate is multiplied by it: powers of two, so in fp32 not one bit
//             of the weights changes. In fp16 nothing is learned.
// Run it      build/05_mixed_precision/01_formats
//             build/05_mixed_precision/01_formats --divide 256
// You see     the formats with real bits, the histogram of the gradients with fp16's edge in it, and (--quick):
//               run                 loss after 60 steps  weights' gradients that are zero
//               fp32, loss / 65536                0.444                                0%
//               fp16, loss / 65536                3.458                               99%
// Read next   formats.hpp; then diff 01_formats.cpp 02_loss_scaling.cpp
#include "workload.hpp"  // load_images, batch_of

#include <cmath>

#include "formats.hpp"                // Format, encode, decode
#include "measure/provenance.hpp"     // write_row
#include "measure/table.hpp"          // Table
#include "measure/verify.hpp"         // expect_equal_bits
#include "parallel/replicate.hpp"     // check_finite
#include "train/flat_parameters.hpp"  // FlatParameters
#include "train/optimizer.hpp"        // Sgd

using namespace manyranks;

namespace {

std::string power(float value) { return fmt::format("{:.4g}", value); }

std::string bits_of(float value, const Format& format) {
  const std::string all = fmt::format("{:0{}b}", encode(value, format), format.bits());
  return all.substr(0, 1) + " " + all.substr(1, static_cast<size_t>(format.exponent_bits)) + " " + all.substr(1 + static_cast<size_t>(format.exponent_bits));
}

// What a format can say, computed by its own encoder and decoder.
void print_formats() {
  Table table({"format", "bits", "largest", "smallest normal", "smallest", "next after 1", "next after 1000", "0.1 as sign, exponent, mantissa", "is really"});
  for (const Format& format : {fp32, tf32, fp16, bf16, fp8_e4m3, fp8_e5m2}) {
    const auto after = [&](float value) { return decode(encode(value, format) + 1, format); };
    const float large = std::min(1000.0F, decode(format.largest(), format));
    table.add({format.name, std::to_string(format.bits()), power(decode(format.largest(), format)), power(decode(1U << format.mantissa_bits, format)), power(decode(1, format)),
               fmt::format("{:.8g}", after(1.0F)), large < 1000 ? "-" : fmt::format("{:.7g}", after(1000.0F)), bits_of(0.1F, format), fmt::format("{:.9f}", round_to(0.1F, format))});
  }
  fmt::print("{}", table.text(2));
}

// How many gradients have which power of two. Bars of percent; what fp16 makes of them at the side.
void print_histogram(const std::vector<torch::Tensor>& gradients) {
  std::vector<torch::Tensor> rows;
  for (const auto& gradient : gradients) rows.push_back(gradient.flatten());
  const auto all = torch::cat(rows).abs();
  const double count = static_cast<double>(all.numel());
  const auto exponents = all.masked_select(all > 0).log2().floor().clamp(-44, 4);
  fmt::print("  gradients of what the layers compute, fp32, by power of two ({} of them, {:.0f}% exactly zero where a ReLU is off):\n", all.numel(), 100 * (all == 0).sum().item<double>() / count);
  for (int low = -44; low < 5; low += 3) {
    const double share = ((exponents >= low) & (exponents < low + 3)).sum().item<double>() / static_cast<double>(exponents.numel());
    if (share == 0) continue;
    const char* fate = low + 3 <= -25 ? "zero in fp16" : low < -24 ? "zero, or one step from it" : low < -14 ? "subnormal in fp16: fewer bits" : "normal in fp16";
    fmt::print("    2^{:<3} .. 2^{:<3} {:5.1f}%  {:<30} {}\n", low, low + 2, 100 * share, std::string(static_cast<size_t>(std::lround(30 * share)), '#'), fate);
  }
  fmt::print("  {:.1f}% of those that are not zero are below 2^-25, half of fp16's smallest number: they become zero\n",
             100 * ((all > 0) & (all < 0x1p-25)).sum().item<double>() / static_cast<double>(exponents.numel()));
}

struct Run {
  std::vector<double> losses;
  torch::Tensor parameters;
  double zero_share = 0;                 // of the weights' gradients in the first step
  std::vector<torch::Tensor> gradients;  // of the layers' outputs, first step
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("05_mixed_precision/01_formats", "range and precision, and a run that fails in fp16");
    double divide = 65536;
    options.add("--divide", divide, "divide the loss by this, a power of two").positive();
    double rate = 0.05;
    options.add("--rate", rate, "of SGD with momentum 0.9, for the loss without division");
    process.start(options);
    one_rank_only(process);
    if (std::exp2(std::round(std::log2(divide))) != divide) throw usage_error("--divide", "not a power of two: fp32 would round, too");
    const int64_t steps = options.steps_or(150, 60), batch = options.batch_or(64);
    fmt::print("  CPU: {}\n", process.cpu_note());

    // 2. The formats; and the encoder against LibTorch's, on numbers of every size.
    const auto values = torch::randn({10000}) * torch::exp2(torch::randint(-40, 20, {10000}).to(torch::kFloat));
    auto half = torch::empty_like(values), brain = torch::empty_like(values);
    for (int64_t i = 0; i < values.numel(); ++i) {
      half.data_ptr<float>()[i] = round_to(values.data_ptr<float>()[i], fp16);
      brain.data_ptr<float>()[i] = round_to(values.data_ptr<float>()[i], bf16);
    }
    expect_equal_bits("fp16 by hand", half, values.to(torch::kHalf).to(torch::kFloat));
    expect_equal_bits("bf16 by hand", brain, values.to(torch::kBFloat16).to(torch::kFloat));
    print_formats();

    // 3. The run: SGD on digits; the loss divided, the rate multiplied.
    const Images images = load_images("digits", options.data, options.seed, 512, 0, process.device());
    const auto run = [&](const std::string& precision, double divisor) {
      const Amp amp(precision);
      Run result;
      torch::manual_seed(options.seed);
      auto model = make_model("mlp", images.shape("mlp"));
      model->to(process.device());
      FlatParameters flat(*model);
      Sgd optimizer(flat.parameters(), flat.gradients(), {.momentum = 0.9});
      for (int64_t step = 0; step < steps; ++step) {
        process.set_step(step);
        const auto [x, y] = batch_of(images.train, step, batch);
        flat.zero_grad();
        torch::Tensor loss;
        {
          const Autocast autocast(amp, process.device().type());
          auto output = x;
          for (const auto& unit : model->units()) {
            output = unit->forward(output);
            if (step == 0) output.register_hook([&](const torch::Tensor& gradient) { result.gradients.push_back(gradient.to(torch::kFloat)); });
          }
          loss = cross_entropy(output, y);
        }
        check_finite(loss);
        (loss / divisor).backward();
        if (step == 0) result.zero_share = (flat.gradients() == 0).to(torch::kDouble).mean().item<double>();
        optimizer.step(rate * divisor);
        result.losses.push_back(loss.item<double>());
      }
      result.parameters = flat.parameters();
      return result;
    };
    const Run plain = run("off", 1), divided = run("off", divide), fails = run("fp16", divide), brave = run("bf16", divide), whole = run("fp16", 1);

    // 4. Verify: in fp32 the division changes nothing; in fp16 it stops learning (as many steps, a tenth of the progress or less).
    expect_equal_bits("fp32 with the loss divided", divided.parameters, plain.parameters);
    const size_t tail = 10;
    const double start = plain.losses.front(), learned = start - mean_of_last(plain.losses, tail);
    const auto progress = [&](const Run& result) { return (start - mean_of_last(result.losses, tail)) / learned; };
    if (divide >= 65536 && progress(fails) > 0.1) throw verify_error("fp16", fmt::format("learned {:.0f}% of what fp32 learned: the run should fail", 100 * progress(fails)));
    if (progress(brave) < 0.9 || progress(whole) < 0.9) throw verify_error("bf16, or fp16 without division", "learned less than nine tenths of what fp32 learned");

    // 5. Why: where the gradients lie. What fails has lost them to zero; what learns has them.
    if (divide >= 65536 && fails.zero_share < 0.9) throw verify_error("fp16", fmt::format("only {:.0f}% of the gradients are zero: something else makes the run fail", 100 * fails.zero_share));
    for (const auto& [name, result] : {std::pair{"fp32, divided", &divided}, {"bf16, divided", &brave}, {"fp16, not divided", &whole}})
      if (result->zero_share > 0.1) throw verify_error(name, fmt::format("{:.0f}% of the gradients are zero, in a run that learns", 100 * result->zero_share));
    print_histogram(divided.gradients);

    // 6. Report.
    Table table({"run", fmt::format("loss after {} steps", steps), "weights' gradients that are zero"});
    const std::string over = fmt::format("loss / {:.0f}", divide);
    for (const auto& [name, dtype, result] : {std::tuple{"fp32", "float32", &plain}, {"fp16", "float16", &whole}}) table.add({name, fmt::format("{:.3f}", mean_of_last(result->losses, tail)), fmt::format("{:.0f}%", 100 * result->zero_share)});
    for (const auto& [name, dtype, result] : {std::tuple{"fp32", "float32", &divided}, {"bf16", "bfloat16", &brave}, {"fp16", "float16", &fails}}) {
      table.add({fmt::format("{}, {}", name, over), fmt::format("{:.3f}", mean_of_last(result->losses, tail)), fmt::format("{:.0f}%", 100 * result->zero_share)});
      for (int64_t step = 0; step < steps; step += std::max<int64_t>(1, steps / 15)) {
        Row row;
        row.set("variant", over).set("workload", "mlp on " + images.name).set("kind", "measured").set("dtype", dtype).set("batch", batch).set("iterations", step);
        write_row(process, row.set("loss", result->losses[static_cast<size_t>(step)]));
      }
    }
    fmt::print("{}  fp32 with and without the division: the same bits. fp16 with it: {:.0f}% of fp32's progress\n", table.text(2), 100 * progress(fails));
  });
}
