// Tables, figures for people, the progress line, version texts and traces.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "launch/errors.hpp"
#include "measure/progress.hpp"
#include "measure/table.hpp"
#include "measure/trace.hpp"
#include "measure/versions.hpp"

namespace manyranks {
namespace {

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(-2048), "-2.0 KiB");
}

TEST(Format, Seconds) {
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(8.3e-7), "830 ns");
  EXPECT_EQ(format_seconds(4.21e-3), "4.21 ms");
  EXPECT_EQ(format_seconds(12.34), "12.3 s");
  EXPECT_EQ(format_seconds(125), "2m05s");
  EXPECT_EQ(format_seconds(3725), "1h02m");
}

TEST(TableText, NumbersToTheRight) {
  Table table({"name", "time"});
  table.add({"ring", "9 ms"});
  table.add({"doubling", "12 ms"});
  EXPECT_EQ(table.text(),
            "name       time\n"
            "--------  -----\n"
            "ring       9 ms\n"
            "doubling  12 ms\n");
}

TEST(TableText, RefusesARaggedRow) {
  Table table({"a", "b"});
  EXPECT_THROW(table.add({"only one"}), std::logic_error);
}

TEST(TableText, CountsLettersNotBytes) {
  Table table({"µs", "b"});
  table.add({"x", "y"});
  EXPECT_EQ(table.text(), "µs  b\n--  -\nx   y\n");
}

TEST(ProgressLine, RateAndTimeLeft) {
  EXPECT_EQ(progress_line("train", 6, 24, 3.0, "loss 1.5"), "train [======>                 ] 6/24  2.0/s  9 s left  loss 1.5");
  EXPECT_EQ(progress_line("train", 0, 24, 1.0, ""), "train [>                       ] 0/24");
  EXPECT_EQ(progress_line("train", 24, 24, 12.0, ""), "train [========================] 24/24  2.0/s  0 s left");
}

TEST(Versions, Texts) {
  EXPECT_EQ(short_mpi_version("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"), "Open MPI 4.1.4");
  EXPECT_EQ(short_mpi_version("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr 7"), "MPICH 4.0.2");
  EXPECT_EQ(short_mpi_version("Intel(R) MPI Library 2021.10 for Linux* OS\n"), "Intel(R) MPI Library 2021.10 for Linux* OS");
  EXPECT_EQ(nccl_code_to_version(23007), "2.30.7");
  EXPECT_EQ(nccl_code_to_version(2708), "2.7.8");
  EXPECT_EQ(find_driver_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:21:40 UTC 2025"), "580.65.06");
  EXPECT_EQ(find_driver_version(""), "");
}

TEST(TraceJson, ParsesAndKeepsEverything) {
  Trace first(0, "n0"), second(1, "n\"1");
  first.complete("compute", "forward", 100.0, 100.5);
  second.complete("compute", "forward", 100.25, 100.5);
  second.complete("comm", "all_reduce", 100.5, 101.0);
  const auto trace = nlohmann::json::parse(merge_traces({first.to_json_events(), second.to_json_events()}));
  int complete = 0;
  std::map<std::pair<int, int>, std::string> lanes;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") ++complete;
    if (event["name"] == "thread_name") lanes[{event["pid"], event["tid"]}] = event["args"]["name"];
    if (event["name"] == "process_name" && event["pid"] == 1) {
      EXPECT_EQ(event["args"]["name"], "rank 1 (n\"1)");
    }
    if (event["name"] == "all_reduce") {
      EXPECT_EQ(event["pid"], 1);
      EXPECT_EQ((lanes[{1, event["tid"]}]), "comm");
      EXPECT_NEAR(event["ts"].get<double>(), 0.5e6, 1);  // after the first event of all ranks
      EXPECT_NEAR(event["dur"].get<double>(), 0.5e6, 1);
    }
  }
  EXPECT_EQ(complete, 3);
  EXPECT_EQ(lanes.size(), 3u);
}

TEST(TraceJson, SpansFromManyThreads) {
  Trace trace(0, "n0");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) auto span = trace.span("lane " + std::to_string(t), "work");
    });
  for (auto& thread : threads) thread.join();
  int complete = 0;
  for (const auto& event : nlohmann::json::parse(trace.to_json_events()))
    if (event["ph"] == "X") {
      ++complete;
      EXPECT_GE(event["dur"].get<double>(), 0);
    }
  EXPECT_EQ(complete, 100);
}

TEST(TraceJson, EmptyAndBadParts) {
  EXPECT_NO_THROW(nlohmann::json::parse(merge_traces({})));
  EXPECT_THROW(merge_traces({"[]", "{}"}), Error);
  EXPECT_THROW(merge_traces({"[{"}), Error);
  EXPECT_THROW(write_trace("/no/such/folder/trace.json", {"[]"}), Error);
}

}  // namespace
}  // namespace manyranks
