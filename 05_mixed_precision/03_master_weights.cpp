// Weights in bfloat16: a step that is smaller than half the distance to the next number is no step.
//
// You learn   why mixed precision keeps a second, float32 copy of the weights: a weight of 1 has its next bf16 neighbour at 1.0078, so an
//             update of 0.003 rounds to nothing, however often it comes. Two repairs: fp32 master weights (4 bytes more per parameter),
//             or stochastic rounding, which goes up with the probability of what is cut off, and so is right on average (no bytes more).
// Run it      build/05_mixed_precision/03_master_weights
//             build/05_mixed_precision/03_master_weights --rate 0.05     (large steps: nearest does well enough)
// You see     four ways to hold the same weights: the loss, updates that left a weight as it was, and bytes per parameter, counted
// Read next   encode_stochastic() in formats.hpp; then 04_autocast.cpp
#include "workload.hpp"  // load_images, batch_of

#include <cmath>
#include <random>

#include "formats.hpp"                // encode_stochastic
#include "measure/allocator.hpp"      // CountingAllocator, MemoryTag
#include "measure/provenance.hpp"     // write_row
#include "measure/table.hpp"          // Table
#include "measure/verify.hpp"         // expect_equal_bits
#include "parallel/replicate.hpp"     // check_finite
#include "train/flat_parameters.hpp"  // FlatParameters
#include "train/fused.hpp"            // fused_sgd

using namespace manyranks;

namespace {

enum class Weights { float32, nearest, stochastic, master };

// float32 -> bfloat16, into `to`. The seed, and with it every random number, is the same on every run, and would be on every rank of a
// job: their weights must stay the same.
void round_stochastically(const torch::Tensor& from, torch::Tensor to, uint32_t seed) {
  const auto host = from.cpu();
  auto codes = torch::empty({from.numel()}, torch::kShort);
  std::minstd_rand random(seed + 1);
  for (int64_t i = 0; i < from.numel(); ++i)
    codes.data_ptr<int16_t>()[i] = static_cast<int16_t>(encode_stochastic(host.data_ptr<float>()[i], bf16, static_cast<uint32_t>(random()) << 1));
  to.copy_(codes.view(torch::kBFloat16));
}

struct Run {
  std::vector<double> losses;
  double lost = 0;             // share of weights whose update was not zero and that did not change
  double bytes_each = 0;       // held for a parameter from step to step, by whatever
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch. Every tensor byte is counted from here on.
    Options options("05_mixed_precision/03_master_weights", "where small updates go");
    double rate = 1e-3;
    options.add("--rate", rate, "of SGD with momentum 0.9; the smaller, the more updates are lost");
    process.start(options);
    one_rank_only(process);
    auto& memory = CountingAllocator::get();
    const torch::Device device = process.device();
    const int64_t steps = options.steps_or(400, 100), batch = options.batch_or(64);
    fmt::print("  CPU: {}\n", process.cpu_note());
    const Images images = load_images("digits", options.data, options.seed, 256, 0, device);

    // 2. One number first: 1000 steps of +0.001 from 1.
    float nearest = 1, master = 1, stochastic = 1;
    std::mt19937 random(1);
    for (int i = 0; i < 1000; ++i) {
      nearest = round_to(nearest + 0.001F, bf16);
      master += 0.001F;
      stochastic = decode(encode_stochastic(stochastic + 0.001F, bf16, static_cast<uint32_t>(random())), bf16);
    }
    fmt::print("  1 + 1000 x 0.001 in bf16: to nearest {}, stochastic {}, in fp32 and rounded once {}\n", nearest, stochastic, round_to(master, bf16));
    if (nearest != 1 || std::abs(stochastic - 2) > 0.2 || round_to(master, bf16) != 2) throw verify_error("1000 small steps", "not what rounding should do");

    // 3. The same training run with weights held in four ways. Momentum is float32 in all of them.
    const auto run = [&](Weights kind) {
      Run result;
      const bool half = kind != Weights::float32, keeps_master = kind == Weights::master;
      const int64_t before = memory.live_bytes();
      torch::manual_seed(options.seed);
      auto model = make_model("mlp", images.shape("mlp"));
      model->to(device, half ? torch::kBFloat16 : torch::kFloat);
      FlatParameters flat(*model, 1, [&](int64_t count, const char* purpose) {
        const MemoryTag tag(std::string_view(purpose) == "parameters" ? Tag::parameters : Tag::gradients);
        return torch::empty({count}, model->parameters().front().options().requires_grad(false));
      });
      // The master begins as the rounded weights, so that all four start alike but for fp32.
      const torch::Tensor velocity = torch::zeros({flat.parameters().numel()}, device), master = keeps_master ? flat.parameters().to(torch::kFloat) : torch::Tensor();
      double changed_nothing = 0, wanted = 0;
      for (int64_t step = 0; step < steps; ++step) {
        process.set_step(step);
        const auto [x, y] = batch_of(images.train, step, batch);
        flat.zero_grad();
        const auto loss = cross_entropy(model->forward(x.to(flat.parameters().scalar_type())).to(torch::kFloat), y);
        check_finite(loss);
        loss.backward();
        // The lesson: from half weights to half weights through float32. Only the master remembers what did not fit: without it the
        // float32 weights live as long as the step, as the float32 gradients do (a library makes them tile by tile, inside its kernel).
        const torch::Tensor gradient = flat.gradients().to(torch::kFloat), whole = keeps_master ? master : flat.parameters().to(torch::kFloat);
        const torch::Tensor old = flat.parameters().clone(), old_whole = whole.clone();
        fused_sgd({static_cast<float>(rate), 0.9F}, whole, gradient, velocity);
        if (kind == Weights::nearest || kind == Weights::master) flat.parameters().copy_(whole);
        if (kind == Weights::stochastic) round_stochastically(whole, flat.parameters(), static_cast<uint32_t>(step));
        const auto moves = whole != old_whole;
        wanted += moves.sum().item<double>();
        changed_nothing += (moves & (flat.parameters() == old)).sum().item<double>();
        result.losses.push_back(loss.item<double>());
      }
      result.lost = changed_nothing / wanted;
      result.bytes_each = device.is_cpu() ? static_cast<double>(memory.live_bytes() - before) / static_cast<double>(flat.count()) : 0;
      return result;
    };
    const std::vector<std::tuple<std::string, std::string, Run, int>> all{{"fp32", "float32", run(Weights::float32), 12},
                                                                         {"bf16, to nearest", "bfloat16", run(Weights::nearest), 8},
                                                                         {"bf16, stochastic", "bfloat16", run(Weights::stochastic), 8},
                                                                         {"bf16, fp32 master", "bfloat16", run(Weights::master), 12}};

    // 4. Verify: rounding to nearest learns less than half as much (a quarter after 100 steps, a tenth after 400); both repairs learn as
    // fp32 does. What is held from step to step is counted whole: scratch that stayed would show.
    const size_t tail = 10;
    const auto loss_of = [&](size_t i) { return mean_of_last(std::get<2>(all[i]).losses, tail); };
    const double start = std::get<2>(all[0]).losses.front();
    const auto progress = [&](size_t i) { return (start - loss_of(i)) / (start - loss_of(0)); };
    if (rate <= 1e-3 && progress(1) > 0.5) throw verify_error("bf16 to nearest", fmt::format("made {:.0f}% of fp32's progress: it should be stuck", 100 * progress(1)));
    for (const auto& [name, dtype, result, bytes] : all)
      if (device.is_cpu() && std::abs(result.bytes_each - bytes) > 0.01) throw verify_error(name, fmt::format("holds {:.2f} bytes per parameter, not {}", result.bytes_each, bytes));
    if (progress(2) < 0.9 || progress(3) < 0.9) throw verify_error("stochastic rounding or master weights", "less than nine tenths of fp32's progress");

    // 5. Report.
    Table table({"weights", fmt::format("loss after {} steps", steps), "of fp32's progress", "updates that left the weight as it was", "bytes per parameter", "counted"});
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& [name, dtype, result, bytes] = all[i];
      table.add({name, fmt::format("{:.3f}", loss_of(i)), fmt::format("{:.0f}%", 100 * progress(i)), fmt::format("{:.0f}%", 100 * result.lost), std::to_string(bytes), device.is_cpu() ? fmt::format("{:.2f}", result.bytes_each) : "-"});
      Row row;
      row.set("variant", name).set("workload", "mlp on " + images.name).set("kind", "measured").set("dtype", dtype).set("batch", batch).set("iterations", steps).set("loss", loss_of(i));
      if (device.is_cpu()) row.set("predicted", static_cast<double>(bytes)).set("measured", result.bytes_each).set("unit", "bytes/parameter");  // the allocator sees no GPU's
      write_row(process, row);
    }
    fmt::print("{}", table.text(2));
  });
}
