#include "train/text_gpt.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "launch/errors.hpp"
#include "models/gpt.hpp"  // initialise_gpt

namespace manyranks {

ModelShape text_gpt_shape(int64_t layers, bool quick) {
  ModelShape shape = usual_shape("gpt");
  shape.layers = layers;
  shape.heads = 12;  // shared by 1, 2, 3, 4, 6 or 12 ranks
  shape.width = quick ? 48 : 192;
  shape.vocab = 264;  // bytes, and as many more as make it divisible by 2, 3 and 4
  shape.context = quick ? 24 : 96;
  return shape;
}

TextBatch text_windows(const Text& text, uint64_t seed, int64_t step, int64_t first_sample, int64_t samples, int64_t context) {
  auto rows = torch::empty({samples, context + 1}, torch::kLong);
  for (int64_t sample = 0; sample < samples; ++sample) {
    const ByteView window = text_window(text.bytes, seed, static_cast<uint64_t>(step), static_cast<uint64_t>(first_sample + sample), static_cast<size_t>(context) + 1);
    std::copy(window.begin(), window.end(), rows.data_ptr<int64_t>() + sample * (context + 1));
  }
  return {rows.narrow(1, 0, context).contiguous(), rows.narrow(1, 1, context).contiguous()};
}

TextGpt::TextGpt(Options& options, int64_t layers, int64_t quick_layers) : shape(text_gpt_shape(layers)), options_(options), quick_layers_(quick_layers) {
  options.add("--width", shape.width, "embedding (C)").positive();
  options.add("--layers", shape.layers, "blocks").positive();
  options.add("--heads", shape.heads, "attention heads").positive();
  options.add("--vocab", shape.vocab, "tokens there are; bytes need 256, the grammar's text 128").positive();
  options.add("--context", shape.context, "sequence length (T)").positive();
}

void TextGpt::prepare(torch::Device where) {
  device = where;
  if (options_.quick) {
    const ModelShape small = text_gpt_shape(quick_layers_, true);
    if (!options_.given("--width")) shape.width = small.width;
    if (!options_.given("--layers")) shape.layers = small.layers;
    if (!options_.given("--context")) shape.context = small.context;
  }
  if (shape.width % shape.heads) throw usage_error("--width", fmt::format("{} is no multiple of {} heads", shape.width, shape.heads), fmt::format("--width {}", shape.width / shape.heads * shape.heads + shape.heads));
  text_ = options_.data.empty() ? grammar_text(options_.seed, 1 << 20) : file_text(options_.data);
  const int largest = text_.bytes.empty() ? 0 : *std::max_element(text_.bytes.begin(), text_.bytes.end());
  if (largest >= shape.vocab) throw usage_error("--vocab", fmt::format("the text has bytes up to {}", largest), fmt::format("--vocab {} or more", largest + 1));
}

std::shared_ptr<Model> TextGpt::dense() const {
  auto model = make_model("gpt", shape);
  initialise_gpt(*model, "", shape.layers, options_.seed);
  model->to(device);
  return model;
}

TextBatch TextGpt::batch(int64_t step, int64_t first_sample, int64_t samples) const {
  const auto [tokens, target] = text_windows(text_, options_.seed, step, first_sample, samples, shape.context);
  return {tokens.to(device), target.to(device)};
}

std::string strategy_name(const std::vector<Factor>& factors, const std::vector<std::string>& words) {
  std::string name;
  const auto add = [&](const std::string& word) { name += (name.empty() || word.empty() ? "" : " ") + word; };
  for (const auto& [axis, size] : factors) add(size > 1 ? fmt::format("{}{}", axis, size) : "");
  for (const std::string& word : words) add(word);
  return name.empty() ? "serial" : name;
}

}  // namespace manyranks
