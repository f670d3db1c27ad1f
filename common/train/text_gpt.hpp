// A gpt and the text it learns, the same for every program that trains one: shape flags, first weights and batches depend on the flags
// alone, so that runs under different strategies begin alike, see the same samples in each step, and must reach the same loss.
//
//   TextGpt gpt(options);                      // adds --width, --layers, --heads, --vocab, --context
//   process.start(options);
//   gpt.prepare(process.device());
//   auto model = gpt.dense();                  // or ParallelGpt(gpt.shape, ...), with the same first weights
//   auto [tokens, target] = gpt.batch(step, first_sample, count);
#pragma once

#include "launch/torch.hpp"

#include <memory>
#include <string>
#include <vector>

#include "data/text.hpp"       // Text
#include "launch/options.hpp"  // Options
#include "models/model.hpp"    // Model, ModelShape

namespace manyranks {

struct TextBatch {
  torch::Tensor tokens, target;  // (N, T), int64: the target is the text one byte further on
};

// The shape that everybody trains unless flags say otherwise.
ModelShape text_gpt_shape(int64_t layers, bool quick = false);

// Samples first_sample, first_sample + 1, ... of a step's global batch: windows of the text, chosen by (seed, step, sample) alone.
TextBatch text_windows(const Text& text, uint64_t seed, int64_t step, int64_t first_sample, int64_t samples, int64_t context);

class TextGpt {
 public:
  explicit TextGpt(Options& options, int64_t layers = 4, int64_t quick_layers = 2);

  ModelShape shape;  // --quick makes it smaller where no flag sets it: see prepare()
  torch::Device device = torch::kCPU;  // of models and batches
  // After the flags were parsed: the shape as it will be, the text (--data FILE, or the grammar's), and process.device().
  void prepare(torch::Device where = torch::kCPU);

  uint64_t seed() const { return options_.seed; }
  const Text& text() const { return text_; }
  std::shared_ptr<Model> dense() const;                                          // the same weights on every rank and every call
  TextBatch batch(int64_t step, int64_t first_sample, int64_t samples) const;  // of the step's global batch

 protected:
  Options& options_;

 private:
  int64_t quick_layers_;
  Text text_;
};

// "tp2 dp2 zero1": the factors above 1, then the words that are not empty; "serial" if nothing is left.
struct Factor {
  const char* axis;
  int size;
};
std::string strategy_name(const std::vector<Factor>& factors, const std::vector<std::string>& words = {});

}  // namespace manyranks
