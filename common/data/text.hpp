// Text for a byte-level language model: a file, or sentences of a small grammar whose entropy is known, so that a loss has a
// floor that no model can go below.
//
//   const Text text = grammar_text(/*seed=*/1, /*bytes=*/1 << 20);      // "two old cats see the bird. ..."
//   text.floor;                                                         // nats per byte
//   text_window(text.bytes, seed, step, sample, 65);                    // 64 tokens and their successors
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/file.hpp"  // Bytes, ByteView

namespace manyranks {

// A symbol becomes one of its choices; a choice is a row of symbols and literal text. No symbol leads back to itself, and no
// two derivations give one sentence, so what a reader must be told is exactly which choices were taken.
class Grammar {
 public:
  struct Choice {
    double probability;
    std::vector<std::string> parts;  // "<noun>" is a symbol, anything else stands for itself
  };
  struct Rule {
    std::string symbol;
    std::vector<Choice> choices;
  };
  explicit Grammar(std::vector<Rule> rules);  // the first rule is the sentence

  struct Sentence {
    std::string text;
    double surprise = 0;  // -ln of its probability
  };
  Sentence draw(std::uint64_t seed, std::uint64_t number) const;
  std::vector<Sentence> all() const;  // every sentence; for small grammars

  double entropy() const { return of_sentence_.entropy; }  // nats per sentence
  double length() const { return of_sentence_.length; }    // expected bytes of a sentence
  // Nats per byte of endless text: sentences are independent, so it is the quotient of the two.
  double entropy_rate() const { return entropy() / length(); }

 private:
  struct Mean {
    double entropy = 0, length = 0;
  };
  const Rule& rule(const std::string& symbol) const;
  Mean mean(const std::string& part, int depth) const;
  std::vector<Rule> rules_;
  Mean of_sentence_;
};

const Grammar& small_grammar();

struct Text {
  Bytes bytes;
  double floor = 0;     // nats per byte; 0 if nobody knows
  double surprise = 0;  // nats per byte of these very bytes, if they come from the grammar
};

Text grammar_text(std::uint64_t seed, std::size_t at_least_bytes);
Text file_text(const std::filesystem::path& path);  // exit 65 if it cannot be read

// `length` bytes that begin at a place that (seed, step, sample) decides: the same for whoever asks. Exit 65 if the text is shorter.
ByteView text_window(ByteView text, std::uint64_t seed, std::uint64_t step, std::uint64_t sample, std::size_t length);

}  // namespace manyranks
