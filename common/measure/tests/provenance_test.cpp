// What fills in a row, from a process that runs alone.
#include "measure/provenance.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "launch/process.hpp"
#include "measure/versions.hpp"

namespace manyranks {
namespace {

// Runs `body` in a started process with these flags; the exit code must be 0.
void with_process(std::vector<std::string> words, const std::function<void(Process&)>& body) {
  words.insert(words.begin(), "program");
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  Process process(static_cast<int>(pointers.size()), pointers.data());
  Options options("03_data_parallel/01_naive", "test");
  EXPECT_EQ(process.run([&] {
    process.start(options);
    body(process);
  }), 0);
}

TEST(Provenance, FillsTheCommonColumns) {
  with_process({"--device", "cpu", "--threads", "1"}, [](Process& process) {
    Row row;
    fill(row, process);
    EXPECT_EQ(row.get("chapter"), "03_data_parallel");
    EXPECT_EQ(row.get("lesson"), "01_naive");
    EXPECT_EQ(row.get("device"), "cpu");
    EXPECT_EQ(row.get("gpu"), "");
    EXPECT_EQ(row.get("nodes"), "1");
    EXPECT_EQ(row.get("ranks"), "1");
    EXPECT_EQ(row.get("threads"), "1");
    EXPECT_EQ(row.get("oversubscribed"), "false");
    EXPECT_EQ(row.get("host"), process.host());
    EXPECT_TRUE(std::regex_match(row.get("run_id"), std::regex("[0-9a-f]{16}")));
    EXPECT_TRUE(std::regex_match(row.get("date"), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")));
    EXPECT_TRUE(std::regex_match(row.get("commit"), std::regex("[0-9a-f]{12}|unknown")));
    EXPECT_TRUE(std::regex_match(row.get("torch"), std::regex(R"(\d+\.\d+\.\d+.*)")));
  });
}

TEST(Provenance, RunIdStaysTheSame) { EXPECT_EQ(run_id(), run_id()); }

TEST(Provenance, MpiSaysItsVersion) { EXPECT_TRUE(std::regex_search(mpi_version(), std::regex(R"( \d+\.\d+)"))) << mpi_version(); }

TEST(Provenance, WritesARowAndSamplesOnlyIfAsked) {
  const std::string base = std::filesystem::temp_directory_path() / ("manyranks_provenance_" + std::to_string(getpid()));
  const std::string csv = base + ".csv", samples = base + ".samples";
  with_process({}, [](Process& process) {
    write_row(process, Row());
    write_samples(process, "naive", {1.0});
  });
  EXPECT_FALSE(std::filesystem::exists(csv));
  with_process({"--csv", csv, "--samples", samples}, [](Process& process) {
    Row row;
    fill(row, Timing{0.5, 0.75, {0.5, 0.75}});
    write_row(process, row);
    write_samples(process, "naive", {0.5, 0.75});
  });
  std::ifstream rows(csv);
  std::string header, line;
  std::getline(rows, header);
  std::getline(rows, line);
  EXPECT_EQ(header + "\n", csv_header());
  EXPECT_NE(line.find(",2,0.5,0.75,"), std::string::npos) << line;
  std::ifstream raw(samples);
  std::getline(raw, header);
  std::getline(raw, line);
  EXPECT_EQ(line, run_id() + ",03_data_parallel/01_naive,naive,0,0.5");
  std::filesystem::remove(csv);
  std::filesystem::remove(samples);
}

}  // namespace
}  // namespace manyranks
