#include "data/text.hpp"

#include <cmath>

#include "data/random.hpp"

namespace manyranks {
namespace {

bool is_symbol(const std::string& part) { return part.size() > 2 && part.front() == '<' && part.back() == '>'; }

}  // namespace

Grammar::Grammar(std::vector<Rule> rules) : rules_(std::move(rules)) {
  if (rules_.empty()) throw data_error("grammar", "there is no rule");
  for (const Rule& rule : rules_) {
    double sum = 0;
    for (const Choice& choice : rule.choices) sum += choice.probability;
    if (std::abs(sum - 1.0) > 1e-9) throw data_error("grammar", "the choices of " + rule.symbol + " do not add up to 1");
  }
  of_sentence_ = mean(rules_.front().symbol, 0);
}

const Grammar::Rule& Grammar::rule(const std::string& symbol) const {
  for (const Rule& rule : rules_)
    if (rule.symbol == symbol) return rule;
  throw data_error("grammar", "there is no rule for " + symbol);
}

// The entropy of a choice, and what follows from each with its probability.
Grammar::Mean Grammar::mean(const std::string& part, int depth) const {
  if (!is_symbol(part)) return {0.0, static_cast<double>(part.size())};
  if (depth > static_cast<int>(rules_.size())) throw data_error("grammar", part + " leads back to itself");
  Mean sum;
  for (const Choice& choice : rule(part).choices) {
    sum.entropy -= choice.probability * std::log(choice.probability);
    for (const std::string& next : choice.parts) {
      const Mean of_next = mean(next, depth + 1);
      sum.entropy += choice.probability * of_next.entropy;
      sum.length += choice.probability * of_next.length;
    }
  }
  return sum;
}

Grammar::Sentence Grammar::draw(std::uint64_t seed, std::uint64_t number) const {
  Random random(seed, number);
  Sentence sentence;
  std::vector<std::string> rest{rules_.front().symbol};  // to be written, the next one last
  while (!rest.empty()) {
    const std::string part = rest.back();
    rest.pop_back();
    if (!is_symbol(part)) {
      sentence.text += part;
      continue;
    }
    const auto& choices = rule(part).choices;
    double at = random.uniform();
    std::size_t taken = 0;
    while (taken + 1 < choices.size() && at >= choices[taken].probability) at -= choices[taken++].probability;
    sentence.surprise -= std::log(choices[taken].probability);
    rest.insert(rest.end(), choices[taken].parts.rbegin(), choices[taken].parts.rend());
  }
  return sentence;
}

std::vector<Grammar::Sentence> Grammar::all() const {
  struct Open {
    Sentence sentence;
    std::vector<std::string> rest;
  };
  std::vector<Open> open(1);
  open.front().rest.push_back(rules_.front().symbol);
  std::vector<Sentence> done;
  while (!open.empty()) {
    Open one = std::move(open.back());
    open.pop_back();
    while (!one.rest.empty() && !is_symbol(one.rest.back())) one.sentence.text += one.rest.back(), one.rest.pop_back();
    if (one.rest.empty()) {
      done.push_back(std::move(one.sentence));
      continue;
    }
    const std::string symbol = one.rest.back();
    one.rest.pop_back();
    for (const Choice& choice : rule(symbol).choices) {
      Open next = one;
      next.sentence.surprise -= std::log(choice.probability);
      next.rest.insert(next.rest.end(), choice.parts.rbegin(), choice.parts.rend());
      open.push_back(std::move(next));
    }
  }
  return done;
}

// The subject decides the form of the verb: a model must look back over an adjective to get it right. "." ends a sentence and
// stands nowhere else, so that a text is cut into sentences in one way only.
const Grammar& small_grammar() {
  static const Grammar grammar({
      {"<sentence>", {{0.5, {"<one>", " ", "<adjective>", "<noun>", " ", "<verb>", "s ", "<object>", ". "}},
                      {0.5, {"<many>", " ", "<adjective>", "<noun>", "s ", "<verb>", " ", "<object>", ". "}}}},
      {"<one>", {{0.6, {"the"}}, {0.4, {"one"}}}},
      {"<many>", {{0.5, {"two"}}, {0.25, {"all"}}, {0.25, {"most"}}}},
      {"<adjective>", {{0.5, {""}}, {0.25, {"old "}}, {0.25, {"small "}}}},
      {"<noun>", {{0.4, {"cat"}}, {0.3, {"dog"}}, {0.2, {"bird"}}, {0.1, {"horse"}}}},
      {"<verb>", {{0.4, {"see"}}, {0.3, {"follow"}}, {0.3, {"greet"}}}},
      {"<object>", {{0.5, {"a ", "<noun>"}}, {0.3, {"the ", "<noun>"}}, {0.2, {"me"}}}},
  });
  return grammar;
}

Text grammar_text(std::uint64_t seed, std::size_t at_least_bytes) {
  Text text;
  text.floor = small_grammar().entropy_rate();
  for (std::uint64_t number = 0; text.bytes.size() < at_least_bytes; ++number) {
    const Grammar::Sentence sentence = small_grammar().draw(seed, number);
    text.bytes.insert(text.bytes.end(), sentence.text.begin(), sentence.text.end());
    text.surprise += sentence.surprise;
  }
  if (!text.bytes.empty()) text.surprise /= static_cast<double>(text.bytes.size());
  return text;
}

Text file_text(const std::filesystem::path& path) {
  Text text;
  read_file(path, text.bytes);
  return text;
}

ByteView text_window(ByteView text, std::uint64_t seed, std::uint64_t step, std::uint64_t sample, std::size_t length) {
  if (text.size() < length)
    throw data_error("text", "it has " + std::to_string(text.size()) + " bytes, a window needs " + std::to_string(length), "a longer file, or a shorter --context");
  return text.subspan(Random(seed, step, sample).below(text.size() - length + 1), length);
}

}  // namespace manyranks
