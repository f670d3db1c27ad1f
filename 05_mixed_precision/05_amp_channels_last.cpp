// Memory format times precision: convolutions in fp32, bf16 and fp16, with the channels in planes (NCHW) or side by side (NHWC).
//
// You learn   that the two choices are not independent: half-precision kernels want the channels of a pixel side by side (tensor cores on
//             GPUs, dot-product instructions on CPUs), and in planes they pay for a reordering in every call. And that a narrower type is
//             not faster by itself: without instructions for it, it is slower. What holds here is measured here.
// Run it      build/05_mixed_precision/05_amp_channels_last
//             build/05_mixed_precision/05_amp_channels_last --model resnet18 --batch 32
// You see     single layers and a whole net, forward and backward, by turns: milliseconds, and gain over fp32 in NCHW
// Read next   diff 05_amp_channels_last.cpp ../01_single_gpu/04_memory_format.cpp, then 06_amp_data_parallel.cpp
#include "workload.hpp"  // load_images, batch_of

#include "measure/provenance.hpp"  // write_row
#include "measure/statistics.hpp"  // median
#include "measure/table.hpp"       // Table
#include "measure/timer.hpp"       // WallTimer
#include "measure/verify.hpp"      // expect_close
#include "models/memory_format.hpp"  // to_channels_last

using namespace manyranks;

namespace {

struct Variant {
  Amp amp;
  bool channels_last;
  std::vector<double> seconds = {};
  std::string layout() const { return channels_last ? "NHWC" : "NCHW"; }
};

std::vector<Variant> all_variants() {
  std::vector<Variant> all;
  for (const char* precision : {"off", "bf16", "fp16"})
    for (const bool channels_last : {false, true}) all.push_back({Amp(precision), channels_last});
  return all;
}

// What fp16's 11 and bf16's 8 bits leave of a sum of many products, norm-relative, once per layer (seen in the convnet: 0.005 and 0.016).
// Batch norm over a handful of samples magnifies every rounding (resnet18: 0.12 and 0.32, and 0.002 in fp32 between layouts); a layer
// whose gradient is missing or in the wrong order makes more.
double tolerance(const Amp& amp, double layers, bool batch_norm) {
  if (batch_norm) return amp.name() == "bf16" ? 0.5 : amp.name() == "fp16" ? 0.25 : 1e-2;
  return layers * (amp.name() == "bf16" ? 1e-2 : amp.name() == "fp16" ? 3e-3 : 1e-5);
}

torch::Tensor in_layout(const torch::Tensor& x, bool channels_last) { return channels_last ? x.contiguous(torch::MemoryFormat::ChannelsLast) : x.contiguous(); }

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("05_mixed_precision/05_amp_channels_last", "memory format times precision for convolutions");
    std::string kind = "convnet";
    options.add("--model", kind, "the whole net").one_of({"convnet", "resnet18", "vgg11"});
    process.start(options);
    one_rank_only(process);
    const torch::Device device = process.device();
    const int64_t batch = options.batch_or(options.quick ? 4 : 16), rounds = options.steps_or(15, 2);
    fmt::print("  CPU: {}\n", process.cpu_note());
    const Images images = load_images("shapes", options.data, options.seed, 64, 0, device);

    // 2. What is compared: layers as a small resnet has them, (channels in, out, side, kernel), and a whole net. Preparing a variant brings
    // its inputs and weights into the layout and the type that the layer before would have given them; the timed step converts nothing but
    // what autocast does: the float32 weight, and of a whole net the first input.
    struct Prepared { std::function<void()> step; std::function<std::vector<torch::Tensor>()> gradients; };
    struct Subject { std::string name; double layers; bool batch_norm; std::function<Prepared(const Variant&)> prepare; };
    std::vector<Subject> subjects;
    const std::vector<std::array<int64_t, 4>> shapes = options.quick ? std::vector<std::array<int64_t, 4>>{{16, 16, 8, 3}} : std::vector<std::array<int64_t, 4>>{{3, 64, 32, 3}, {64, 64, 32, 3}, {128, 128, 16, 3}, {128, 256, 16, 1}};
    for (const auto& [in, out, side, kernel] : shapes) {
      torch::manual_seed(options.seed);
      const auto x = torch::randn({batch, in, side, side}, device), w = torch::randn({out, in, kernel, kernel}, device) / 8, g = torch::ones({batch, out, side, side}, device);
      subjects.push_back({fmt::format("{}x{} conv, {} to {}, {}x{}", kernel, kernel, in, out, side, side), 1, false, [=](const Variant& variant) {
        const auto place = [&](const torch::Tensor& tensor, torch::Dtype dtype) { return in_layout(tensor, variant.channels_last).to(dtype).detach(); };
        const auto input = place(x, variant.amp.dtype()).set_requires_grad(true), weight = place(w, torch::kFloat).set_requires_grad(true), ones = place(g, variant.amp.dtype());
        const auto step = [=, amp = variant.amp] {
          input.mutable_grad().reset(), weight.mutable_grad().reset();
          torch::Tensor y;
          {
            const Autocast autocast(amp, device.type());
            y = torch::conv2d(input, weight, {}, 1, kernel / 2);
          }
          y.backward(ones);
        };
        return Prepared{step, [=] { return std::vector{input.grad(), weight.grad()}; }};
      }});
    }
    const Samples samples = batch_of(images.train, 0, batch);
    std::map<bool, std::shared_ptr<Model>> models;
    for (const bool channels_last : {false, true}) {
      torch::manual_seed(options.seed);
      models[channels_last] = make_model(kind, images.shape(kind));
      models[channels_last]->to(device);
      if (channels_last) to_channels_last(*models[channels_last]);
    }
    subjects.push_back({kind + ", whole", kind == "convnet" ? 4.0 : 11.0, kind == "resnet18", [&](const Variant& variant) {
      const auto model = models[variant.channels_last];
      const auto input = in_layout(samples.x, variant.channels_last);
      const auto step = [=, amp = variant.amp, y = samples.y] {
        model->zero_grad();
        torch::Tensor loss;
        {
          const Autocast autocast(amp, device.type());
          loss = cross_entropy(model->forward(input), y);
        }
        loss.backward();
      };
      return Prepared{step, [=] {
        std::vector<torch::Tensor> all;
        for (const auto& parameter : model->parameters()) all.push_back(parameter.grad());
        return all;
      }};
    }});

    // 3. Verify each against fp32 in NCHW, all gradients as one row; then time all by turns.
    for (const auto& [name, layers, batch_norm, prepare] : subjects) {
      std::vector<Variant> variants = all_variants();
      std::vector<Prepared> prepared;
      torch::Tensor expected;
      double worst = 0;
      for (const Variant& variant : variants) {
        prepared.push_back(prepare(variant));
        prepared.back().step();
        std::vector<torch::Tensor> rows;
        for (const auto& gradient : prepared.back().gradients()) rows.push_back(gradient.to(torch::kFloat).flatten());  // in NCHW's order, whatever the layout
        const torch::Tensor got = torch::cat(rows);
        if (!expected.defined()) expected = got;
        expect_close(fmt::format("gradients of {} in {}, {}", name, variant.amp.dtype_name(), variant.layout()), got, expected, tolerance(variant.amp, layers, batch_norm));
        worst = std::max(worst, ((got - expected).norm() / expected.norm()).item<double>());
      }
      if (options.verify_only) continue;
      for (int64_t round = 0; round < rounds; ++round)
        for (size_t i = 0; i < variants.size(); ++i) {
          finish_device_work();
          const WallTimer timer;
          prepared[i].step();
          finish_device_work();
          variants[i].seconds.push_back(timer.seconds());
        }

      // 4. Report.
      Table table({name, "NCHW", "NHWC", "gain", "NCHW against fp32", "NHWC against fp32 NCHW"});
      const double base = median(variants[0].seconds);
      for (size_t i = 0; i < variants.size(); i += 2) {
        const double plane = median(variants[i].seconds), pixel = median(variants[i + 1].seconds);
        table.add({variants[i].amp.dtype_name(), fmt::format("{:.2f} ms", 1e3 * plane), fmt::format("{:.2f} ms", 1e3 * pixel), fmt::format("{:.2f}x", plane / pixel), fmt::format("{:.2f}x", base / plane), fmt::format("{:.2f}x", base / pixel)});
      }
      fmt::print("{}  gradients are off fp32's by {:.0e} at most\n", table.text(2), worst);
      for (const Variant& variant : variants) {
        Row row;
        fill(row, Timing{median(variant.seconds), quantile(variant.seconds, 0.95), variant.seconds});
        row.set("variant", variant.layout()).set("workload", name).set("kind", "measured").set("dtype", variant.amp.dtype_name()).set("batch", batch);
        write_row(process, row.set("rate", static_cast<double>(batch) / median(variant.seconds)).set("rate_unit", "samples/s"));
      }
    }
  });
}
