// The rank map, the CPU cap, exit lines and flags.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>  // ParseError

#include "launch/cpu_features.hpp"
#include "launch/errors.hpp"
#include "launch/options.hpp"
#include "launch/rank_map.hpp"

namespace manyranks {
namespace {

TEST(RankMap, OneProcessPerGpu) {
  const auto places = place_ranks({.nodes = 2, .gpus_per_node = 4, .processes_per_node = 4});
  ASSERT_EQ(places.size(), 8u);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(places[rank].rank, rank);
    EXPECT_EQ(places[rank].node, rank / 4);
    EXPECT_EQ(places[rank].local_rank, rank % 4);
    EXPECT_EQ(places[rank].devices, std::vector<int>{rank % 4});
  }
}

TEST(RankMap, ProcessDrivesSeveralGpus) {
  const auto places = place_ranks({.nodes = 2, .gpus_per_node = 8, .processes_per_node = 2});
  EXPECT_EQ(places[0].devices, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(places[3].node, 1);
  EXPECT_EQ(places[3].devices, (std::vector<int>{4, 5, 6, 7}));
}

TEST(RankMap, CpuOnly) {
  for (const auto& place : place_ranks({.nodes = 1, .gpus_per_node = 0, .processes_per_node = 3})) EXPECT_TRUE(place.devices.empty());
}

TEST(RankMap, Refuses) {
  EXPECT_THROW(place_ranks({1, 2, 3}), Error);   // two ranks on one GPU
  EXPECT_THROW(place_ranks({1, 3, 2}), Error);   // uneven
  EXPECT_THROW(place_ranks({0, 1, 1}), Error);
  EXPECT_THROW(place_ranks({1, -1, 1}), Error);
  EXPECT_THROW(place_ranks({1, 1, 0}), Error);
}

TEST(RankMap, Drawing) {
  const auto text = draw_map(place_ranks({2, 1, 1}), {"n0", "n1"}, 1);
  EXPECT_NE(text.find("node 0 (n0)"), std::string::npos);
  EXPECT_NE(text.find("rank  1* local 0 gpu 0"), std::string::npos);
  EXPECT_EQ(text.find("rank  0*"), std::string::npos);
}

TEST(Cpu, NoCapWithoutAmxOrWithSoundAmx) {
  EXPECT_FALSE(onednn_cap({.avx2 = true, .avx512 = true}));
  EXPECT_FALSE(onednn_cap({.avx2 = true, .avx512 = true, .amx_advertised = true, .amx_usable = true}));
}

TEST(Cpu, CapIsTheBestThatWorks) {
  CpuFeatures cpu{.avx2 = true, .avx512 = true, .avx512_bf16 = true, .avx512_fp16 = true, .amx_advertised = true};
  EXPECT_EQ(onednn_cap(cpu), "AVX512_CORE_FP16");
  cpu.avx512_fp16 = false;
  EXPECT_EQ(onednn_cap(cpu), "AVX512_CORE_BF16");
  cpu.avx512_bf16 = false;
  EXPECT_EQ(onednn_cap(cpu), "AVX512_CORE");
  cpu.avx512 = false;
  EXPECT_EQ(onednn_cap(cpu), "AVX2");
}

TEST(Cpu, UsableSetsLeaveOutUnusableAmx) {
  EXPECT_EQ(usable_instruction_sets({.avx2 = true, .amx_advertised = true}), std::vector<std::string>{"avx2"});
  EXPECT_EQ(usable_instruction_sets({.amx_advertised = true, .amx_usable = true}), std::vector<std::string>{"amx"});
}

TEST(Errors, Line) {
  const auto error = lost_peer_error("all_reduce #3", "rank 2 is gone", "restart");
  EXPECT_EQ(error_line(error, 1, 4, "n1", 12), "manyranks: error: rank 1 of 4, host n1, step 12, all_reduce #3: rank 2 is gone; try: restart [exit 75]");
  EXPECT_EQ(error_line(data_error("a", "b"), 0, 1, "h", -1), "manyranks: error: rank 0 of 1, host h, a: b [exit 65]");
}

TEST(Errors, Codes) {
  EXPECT_EQ(static_cast<int>(verify_error("", "").code), 1);
  EXPECT_EQ(static_cast<int>(usage_error("", "").code), 64);
  EXPECT_EQ(static_cast<int>(data_error("", "").code), 65);
  EXPECT_EQ(static_cast<int>(unavailable_error("", "").code), 69);
  EXPECT_EQ(static_cast<int>(disagree_error("", "").code), 70);
  EXPECT_EQ(static_cast<int>(io_error("", "").code), 74);
  EXPECT_EQ(static_cast<int>(lost_peer_error("", "").code), 75);
  EXPECT_EQ(static_cast<int>(Exit::skipped), 77);
}

TEST(Errors, RequiredIsByWholeWords) {
  EXPECT_TRUE(is_required("gpu", "gpu"));
  EXPECT_TRUE(is_required("nccl", "gpu,nccl,multinode"));
  EXPECT_FALSE(is_required("gpu", "gpus,nogpu"));
  EXPECT_FALSE(is_required("gpu", ""));
  EXPECT_FALSE(is_required("gpu", nullptr));
}

// Parses `words` after the program's name.
void parse(Options& options, std::vector<std::string> words) {
  words.insert(words.begin(), "program");
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  options.parse(static_cast<int>(pointers.size()), pointers.data());
}

TEST(Options, Defaults) {
  Options options("03_data_parallel/01_naive", "test");
  parse(options, {});
  EXPECT_EQ(options.device, "auto");
  EXPECT_EQ(options.threads, 1);
  EXPECT_EQ(options.memory_cap, 0u);
  EXPECT_EQ(options.steps_or(100, 3), 100);
  EXPECT_EQ(options.batch_or(32), 32);
}

TEST(Options, ReadsAll) {
  Options options("x", "test");
  parse(options, {"--device", "cpu", "--backend", "gloo", "--steps", "7", "--batch", "4", "--seed", "9", "--csv", "f.csv", "--timeout-s", "2.5", "--quick"});
  EXPECT_EQ(options.device, "cpu");
  EXPECT_EQ(options.backend, "gloo");
  EXPECT_EQ(options.steps_or(100, 3), 7);
  EXPECT_EQ(options.batch_or(32), 4);
  EXPECT_EQ(options.seed, 9u);
  EXPECT_EQ(options.csv, "f.csv");
  EXPECT_EQ(options.timeout_s, 2.5);
}

TEST(Options, QuickStepsOnlyIfNotGiven) {
  Options options("x", "test");
  parse(options, {"--quick"});
  EXPECT_EQ(options.steps_or(100, 3), 3);
}

TEST(Options, MemoryCapSuffixes) {
  const std::pair<const char*, uint64_t> cases[] = {{"100", 100}, {"1kb", 1024}, {"64mb", 64u << 20}, {"2GB", uint64_t{2} << 30}};
  for (const auto& [text, bytes] : cases) {
    Options options("x", "test");
    parse(options, {"--memory-cap", text});
    EXPECT_EQ(options.memory_cap, bytes) << text;
  }
}

TEST(Options, RefusesUnknownAndBad) {
  const std::vector<std::vector<std::string>> cases = {
      {"--no-such-flag"}, {"stray"}, {"--device", "tpu"}, {"--backend", "ucx"}, {"--steps", "-1"}, {"--steps", "many"}, {"--threads", "0"},
      {"--timeout-s", "0"}, {"--memory-cap", "big"}, {"--memory-cap", "1 parsec"}, {"--batch"}};
  for (const auto& words : cases) {
    Options options("x", "test");
    EXPECT_THROW(parse(options, words), CLI::ParseError) << words[0];
  }
}

TEST(Options, SummaryNamesWhatWasGivenAndTheSeed) {
  Options options("03_data_parallel/01_naive", "test");
  parse(options, {"--steps", "7", "--quick"});
  EXPECT_EQ(options.summary(), "03_data_parallel/01_naive: --steps 7 --quick --seed 1");
}

TEST(Options, ProgramsAddTheirOwn) {
  Options options("x", "test");
  int buckets = 1;
  options.add("--buckets", buckets, "how many");
  parse(options, {"--buckets", "5"});
  EXPECT_EQ(buckets, 5);
}

}  // namespace
}  // namespace manyranks
