// Dynamic loss scaling by hand: the run that failed in fp16 learns as fp32 does.
//
// You learn   that multiplying the loss moves every gradient by as many powers of two, to where fp16 has numbers; that the scale need not
//             be guessed: one that is too large shows itself as infinity, the step is skipped and the scale halved, and after a number of
//             good steps a larger one is tried; that gradients are unscaled before anybody looks at their size.
// Run it      build/05_mixed_precision/02_loss_scaling
//             build/05_mixed_precision/02_loss_scaling --initial 1 --interval 5
// You see     the failing run repaired, and what the scale did (--quick):
//               run                                      loss after 60 steps  skipped  last scale  of fp32's progress
//               fp16, loss / 65536                                     3.458        0         2^0                -62%
//               fp16, loss / 65536, scale 2^40, dynamic                0.597        7        2^35                 92%
// Read next   common/train/grad_scaler.hpp, common/kernels/guarded.hpp; then 03_master_weights.cpp
#include "workload.hpp"  // load_images, batch_of

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>

#include <cmath>

#include "measure/provenance.hpp"     // write_row
#include "measure/table.hpp"          // Table
#include "measure/verify.hpp"         // expect_equal_bits
#include "parallel/replicate.hpp"     // check_finite
#include "train/flat_parameters.hpp"  // FlatParameters
#include "train/grad_scaler.hpp"      // GradScaler
#include "train/guarded.hpp"          // squared_norm, guarded_sgd

using namespace manyranks;

namespace {

// How the loss is scaled. interval 0: the scale stays as it is.
struct Scaling {
  double initial = 1;
  int64_t interval = 0;
};

// PyTorch's own operators, fed with the same gradients: what they make of them is what we must make of them.
class TorchScaler {
 public:
  explicit TorchScaler(const Scaling& scaling) : scale_(torch::full({1}, scaling.initial)), good_(torch::zeros({1}, torch::kInt)), interval_(scaling.interval) {}

  void check(const torch::Tensor& gradients, float scale, bool overflow) {
    expect_equal_bits("scale, PyTorch's and ours", torch::full({1}, scale), scale_);
    torch::Tensor unscaled = gradients.cpu().clone(), found = torch::zeros({1});
    at::_amp_foreach_non_finite_check_and_unscale_({unscaled}, found, scale_.to(torch::kDouble).reciprocal().to(torch::kFloat));
    if ((found.item<float>() > 0) != overflow) throw verify_error("overflow", overflow ? "we found one, PyTorch did not" : "PyTorch found one, we did not");
    if (!overflow) expect_equal_bits("unscaled gradients", gradients.cpu() * GradScaler({scale}).inverse(), unscaled);
    at::_amp_update_scale_(scale_, good_, found, 2.0, 0.5, interval_);
  }

 private:
  torch::Tensor scale_, good_;
  int64_t interval_;
};

struct Run {
  std::vector<double> losses, scales;
  int64_t skipped = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("05_mixed_precision/02_loss_scaling", "a scale for the loss that finds itself");
    double divide = 65536, rate = 0.05, initial = 0x1p40;
    int64_t interval = 20;
    options.add("--divide", divide, "divide the loss by this, a power of two").positive();
    options.add("--rate", rate, "of SGD with momentum 0.9, for the loss without division");
    options.add("--initial", initial, "the first scale; PyTorch's is 65536, this one is meant to be too large").positive();
    options.add("--interval", interval, "good steps before the scale grows; PyTorch's is 2000").positive();
    process.start(options);
    one_rank_only(process);
    if (std::exp2(std::round(std::log2(divide))) != divide) throw usage_error("--divide", "not a power of two: fp32 would round, too");
    const int64_t steps = options.steps_or(150, 60), batch = options.batch_or(64);
    fmt::print("  CPU: {}\n", process.cpu_note());

    // 2. The run of 01_formats, with a scale.
    const Images images = load_images("digits", options.data, options.seed, 512, 0, process.device());
    const auto run = [&](const std::string& precision, const Scaling& scaling) {
      const Amp amp(precision);
      Run result;
      torch::manual_seed(options.seed);
      auto model = make_model("mlp", images.shape("mlp"));
      model->to(process.device());
      FlatParameters flat(*model);
      const torch::Tensor velocity = torch::zeros_like(flat.parameters());
      float scale = static_cast<float>(scaling.initial);
      int64_t good_steps = 0;
      GradScaler library({scale, 2.0, 0.5, std::max<int64_t>(1, scaling.interval)});
      TorchScaler torchs(scaling);
      for (int64_t step = 0; step < steps; ++step) {
        process.set_step(step);
        const auto [x, y] = batch_of(images.train, step, batch);
        flat.zero_grad();
        torch::Tensor loss;
        {
          const Autocast autocast(amp, process.device().type());
          loss = cross_entropy(model->forward(x), y);
        }
        check_finite(loss);  // loss scaling does not help where the forward pass itself overflows
        (loss / divide * scale).backward();
        result.scales.push_back(scale);

        // The lesson. One pass over the gradients says whether one of them is not finite, and what their norm is; a second one unscales
        // and steps, or does nothing. Then the scale learns from what happened.
        const torch::Tensor norm = squared_norm(flat.gradients());
        const kernels::Guard guard{.inverse_scale = 1.0 / scale};
        guarded_sgd({kernels::Sgd{static_cast<float>(rate * divide), 0.9F, 0.0F}, guard}, norm, flat.parameters(), flat.gradients(), velocity);
        const bool overflow = !std::isfinite(norm.item<double>());
        result.skipped += overflow;
        if (scaling.interval > 0) {
          torchs.check(flat.gradients(), scale, overflow);
          if (overflow) {
            scale *= 0.5F, good_steps = 0;
          } else if (++good_steps == scaling.interval) {
            scale *= 2.0F, good_steps = 0;
          }
          library.update(overflow);
          if (library.scale() != scale) throw verify_error("scale", fmt::format("by hand {}, GradScaler {}", scale, library.scale()));
        }
        result.losses.push_back(loss.item<double>());
      }
      result.scales.push_back(scale);
      return result;
    };
    const Run full = run("off", {}), fails = run("fp16", {}), fixed = run("fp16", {divide, 0}), dynamic = run("fp16", {initial, interval});

    // 3. Verify: one fails, the others learn what fp32 learns. (Each scale, skip and unscaled gradient was compared with PyTorch's on the way.)
    const size_t tail = 10;
    const double start = full.losses.front(), learned = start - mean_of_last(full.losses, tail);
    const auto progress = [&](const Run& result) { return (start - mean_of_last(result.losses, tail)) / learned; };
    // A run that found its scale late had fewer steps to learn in: with flags that ask for it, that is no failure.
    const bool as_it_comes = !options.steps && !options.given("--initial") && !options.given("--interval");
    const bool found_in_time = as_it_comes || dynamic.skipped <= steps / 5;
    if (divide >= 65536 && progress(fails) > 0.1) throw verify_error("fp16", fmt::format("learned {:.0f}% of what fp32 learned: the run should fail", 100 * progress(fails)));
    if (progress(fixed) < 0.9) throw verify_error("fp16 with a fixed scale", "learned less than nine tenths of what fp32 learned");
    if (found_in_time && progress(dynamic) < 0.8) throw verify_error("fp16 with a dynamic scale", "learned less than eight tenths of what fp32 learned");
    if (!options.given("--initial") && dynamic.skipped == 0) throw verify_error("fp16 with a dynamic scale", "2^40 did not overflow");
    fmt::print("  {} steps: every scale, every skip and every unscaled gradient has the bits of PyTorch's operators\n", steps);

    // 4. Report: the losses, and where the scale went.
    Table table({"run", fmt::format("loss after {} steps", steps), "skipped", "last scale", "of fp32's progress"});
    const std::string over = fmt::format("loss / {:.0f}", divide);
    const auto power = [](double scale) { return fmt::format("2^{:.0f}", std::log2(scale)); };
    for (const auto& [name, dtype, result] : {std::tuple{"fp32, " + over, "float32", &full}, {"fp16, " + over, "float16", &fails}, {fmt::format("fp16, {}, scale {}", over, power(divide)), "float16", &fixed},
                                              {fmt::format("fp16, {}, scale {}, dynamic", over, power(initial)), "float16", &dynamic}}) {
      table.add({name, fmt::format("{:.3f}", mean_of_last(result->losses, tail)), std::to_string(result->skipped), power(result->scales.back()), fmt::format("{:.0f}%", 100 * progress(*result))});
      for (int64_t step = 0; step < steps; step += std::max<int64_t>(1, steps / 15)) {
        Row row;
        row.set("variant", name).set("workload", "mlp on " + images.name).set("kind", "measured").set("dtype", dtype).set("batch", batch).set("iterations", step);
        write_row(process, row.set("loss", result->losses[static_cast<size_t>(step)]));
      }
    }
    std::string path = power(dynamic.scales.front());
    for (size_t step = 1; step < dynamic.scales.size(); ++step)
      if (dynamic.scales[step] != dynamic.scales[step - 1]) path += fmt::format(", {} after step {}", power(dynamic.scales[step]), step - 1);
    fmt::print("{}  the dynamic scale: {}\n", table.text(2), path);
  });
}
