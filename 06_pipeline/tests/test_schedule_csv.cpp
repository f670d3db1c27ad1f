// A schedule survives its file; a bad file is exit 65 and names file and line.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "check.hpp"
#include "generate.hpp"
#include "launch/errors.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;

TEST(ScheduleCsv, round_trip) {
  for (const std::string& name : schedule_names())
    for (int p : {1, 2, 3}) {
      const Schedule schedule = generate(name, p, 5, name == "interleaved" ? 2 : 1);
      EXPECT_EQ(schedule_from_csv(schedule_to_csv(schedule), "x"), schedule);
    }
  const std::string file = testing::TempDir() + "schedule.csv";
  save_schedule(one_f_one_b_schedule(3, 4), file);
  EXPECT_EQ(load_schedule(file), one_f_one_b_schedule(3, 4));
  std::filesystem::remove(file);
}

static std::string error_of(const std::string& text) {
  try {
    schedule_from_csv(text, "mine.csv");
  } catch (const Error& error) {
    return error.code == Exit::data ? error.operation + ": " + error.cause : "wrong exit code";
  }
  return "accepted";
}

TEST(ScheduleCsv, bad_files_name_file_and_line) {
  const std::string header = "stage,action,microbatch,chunk\n";
  EXPECT_EQ(schedule_from_csv(header + "0,forward,0,0\n0,backward,0,0\n", "x"), naive_schedule(1, 1));
  EXPECT_EQ(schedule_from_csv(header + "0,forward,0,0\r\n0,backward,0,0\r\n", "x"), naive_schedule(1, 1));
  EXPECT_EQ(error_of(""), "schedule mine.csv:1: no actions");
  EXPECT_EQ(error_of(header), "schedule mine.csv:2: no actions");
  EXPECT_EQ(error_of("stage,action\n"), "schedule mine.csv:1: the first line must be 'stage,action,microbatch,chunk'");
  EXPECT_EQ(error_of(header + "0,forward,0,0\n0,backwards,0,0\n"), "schedule mine.csv:3: unknown action 'backwards'");
  EXPECT_EQ(error_of(header + "0,forward,0\n"), "schedule mine.csv:2: a row has 4 cells (stage,action,microbatch,chunk)");
  EXPECT_EQ(error_of(header + "0,forward,0,0,1\n"), "schedule mine.csv:2: a row has 4 cells (stage,action,microbatch,chunk)");
  EXPECT_EQ(error_of(header + "\n"), "schedule mine.csv:2: a row has 4 cells (stage,action,microbatch,chunk)");
  EXPECT_EQ(error_of(header + "0,forward,-1,0\n"), "schedule mine.csv:2: microbatch '-1' is not a whole number from 0 to 1048575");
  EXPECT_EQ(error_of(header + "0,forward,1x,0\n"), "schedule mine.csv:2: microbatch '1x' is not a whole number from 0 to 1048575");
  EXPECT_EQ(error_of(header + "0,forward,99999999999,0\n"), "schedule mine.csv:2: microbatch '99999999999' is not a whole number from 0 to 1048575");
  EXPECT_EQ(error_of(header + "1,forward,0,0\n"), "schedule mine.csv:2: stage 1 after stage -1: stages come in order, none left out");
  EXPECT_EQ(error_of(header + "0,forward,0,0\n2,forward,0,0\n"), "schedule mine.csv:3: stage 2 after stage 0: stages come in order, none left out");
  EXPECT_EQ(error_of(header + "0,forward,0,0\n0,backward,0,0"), "schedule mine.csv:3: the last line does not end: was the file cut off?");
  EXPECT_EQ(error_of(header + "0,forward,1048575,255\n0,backward,0,0\n"),
            "schedule mine.csv:4: 2 rows, but 1 stages, 1048576 microbatches and 256 chunks need 536870912 at least");
}

TEST(ScheduleCsv, damaged_files_never_crash) {
  // Bytes flipped, dropped and doubled: either refused with exit 65, or read and then judged by the checks.
  std::mt19937 random(65);
  const std::string good = schedule_to_csv(zero_bubble_schedule(2, 3));
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (const auto what = random() % 3; what == 0) text[at] = static_cast<char>(random() % 128);
      else if (what == 1) text.erase(at, 1 + random() % 20);
      else text.insert(at, text.substr(at, 1 + random() % 20));
    }
    try {
      check(schedule_from_csv(text, "damaged.csv"));
    } catch (const Error& error) {
      ASSERT_EQ(error.code, Exit::data);
    }
  }
}

TEST(ScheduleCsv, a_file_that_cannot_be_read_is_exit_74) {
  try {
    load_schedule("/no/such/schedule.csv");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::io);
  }
}
