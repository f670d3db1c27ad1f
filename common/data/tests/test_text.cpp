// The grammar's entropy is what the loss of chapter 04 is compared with: it is found here in three ways.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "data/text.hpp"
#include "temporary_folder.hpp"

namespace manyranks {
namespace {

TEST(Grammar, EntropyOfAFairCoin) {
  const Grammar coin({{"<s>", {{0.5, {"heads."}}, {0.5, {"t", "<end>"}}}}, {"<end>", {{1.0, {"ails."}}}}});
  EXPECT_DOUBLE_EQ(coin.entropy(), std::log(2.0));
  EXPECT_DOUBLE_EQ(coin.length(), 6.0);
}

TEST(Grammar, RefusesWhatItCannotCount) {
  EXPECT_THROW(Grammar({{"<s>", {{0.5, {"x"}}, {0.4, {"y"}}}}}), Error);              // not 1
  EXPECT_THROW(Grammar({{"<s>", {{0.5, {"x", "<s>"}}, {0.5, {"y"}}}}}), Error);       // endless
  EXPECT_THROW(Grammar({{"<s>", {{1.0, {"<missing>"}}}}}), Error);
}

// By hand from every sentence: also shows that no two derivations give one sentence, without which the floor would be too high.
TEST(Grammar, EntropyIsThatOfAllSentences) {
  std::map<std::string, double> probability;
  for (const auto& sentence : small_grammar().all()) {
    EXPECT_TRUE(probability.emplace(sentence.text, std::exp(-sentence.surprise)).second) << sentence.text << " has two derivations";
    EXPECT_EQ(sentence.text.find('.'), sentence.text.size() - 2) << sentence.text;  // ends once: a text is cut in one way only
  }
  double sum = 0, entropy = 0, length = 0;
  for (const auto& [text, p] : probability) sum += p, entropy -= p * std::log(p), length += p * static_cast<double>(text.size());
  EXPECT_NEAR(sum, 1.0, 1e-12);
  EXPECT_NEAR(small_grammar().entropy(), entropy, 1e-12);
  EXPECT_NEAR(small_grammar().length(), length, 1e-10);
}

// And from a long text, which knows nothing of rules: the frequencies of its sentences.
TEST(Grammar, EntropyIsThatOfTheText) {
  const Text text = grammar_text(7, 4'000'000);
  std::map<std::string, double> count;
  double sentences = 0;
  for (size_t begin = 0, i = 0; i < text.bytes.size(); ++i)
    if (text.bytes[i] == '.') count[std::string(text.bytes.begin() + static_cast<long>(begin), text.bytes.begin() + static_cast<long>(i))] += 1, sentences += 1, begin = i + 2;
  double entropy = 0;
  for (const auto& [sentence, times] : count) entropy -= times / sentences * std::log(times / sentences);
  const double rate = entropy * sentences / static_cast<double>(text.bytes.size());
  EXPECT_NEAR(rate, text.floor, 0.005 * text.floor);
  EXPECT_NEAR(text.surprise, text.floor, 0.005 * text.floor);
}

TEST(Text, SameSeedSameBytes) {
  EXPECT_EQ(grammar_text(1, 5000).bytes, grammar_text(1, 5000).bytes);
  EXPECT_NE(grammar_text(1, 5000).bytes, grammar_text(2, 5000).bytes);
  for (const auto byte : grammar_text(1, 5000).bytes) EXPECT_LT(byte, 128);
}

TEST(Text, Windows) {
  const Bytes bytes{'a', 'b', 'c', 'd'};
  std::set<char> begins;
  for (std::uint64_t sample = 0; sample < 64; ++sample) {
    const ByteView window = text_window(bytes, 1, 0, sample, 3);
    ASSERT_EQ(window.size(), 3U);
    begins.insert(static_cast<char>(window[0]));
  }
  EXPECT_EQ(begins, (std::set<char>{'a', 'b'}));
  EXPECT_EQ(text_window(bytes, 1, 0, 0, 4).size(), 4U);
  EXPECT_THROW(text_window(bytes, 1, 0, 0, 5), Error);
}

TEST(Text, Files) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "a.txt") << "any bytes";
  EXPECT_EQ(file_text(folder.path() / "a.txt").bytes.size(), 9U);
  EXPECT_EQ(file_text(folder.path() / "a.txt").floor, 0.0);
  EXPECT_THROW(file_text(folder.path() / "b.txt"), Error);
}

}  // namespace
}  // namespace manyranks
