#include "measure/csv.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

class Csv : public testing::Test {
 protected:
  Csv() { std::filesystem::remove(path_); }
  ~Csv() override { std::filesystem::remove(path_); }
  std::string content() const {
    std::ifstream file(path_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void put(const std::string& text) { std::ofstream(path_) << text; }
  // The io error that opening must cause.
  std::string refusal() {
    try {
      CsvWriter writer(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code, Exit::io);
      EXPECT_NE(error.operation.find(path_), std::string::npos) << error.operation;
      return error.cause;
    }
    ADD_FAILURE() << "accepted";
    return "";
  }
  std::string path_ = std::filesystem::temp_directory_path() / ("manyranks_csv_test_" + std::to_string(getpid()) + ".csv");
};

TEST_F(Csv, HeaderIsTheConvention) {
  EXPECT_EQ(csv_header(),
            "chapter,lesson,variant,workload,kind,scaling,device,gpu,backend,transport,nodes,ranks,threads,oversubscribed,"
            "batch,global_batch,dtype,bytes,iterations,median_s,p95_s,rate,rate_unit,algbw_GBs,busbw_GBs,sent_bytes,peak_bytes,"
            "data_wait_s,compute_s,exposed_comm_s,optimizer_s,predicted,measured,unit,loss,"
            "run_id,repeat,commit,dirty,torch,nccl,mpi,driver,date,host\n");
}

TEST_F(Csv, CellsGoUnderTheirColumns) {
  Row row;
  row.set("chapter", "03").set("ranks", 4).set("oversubscribed", true).set("median_s", 0.25).set("host", std::string("n1"));
  const std::string line = row.line();
  EXPECT_EQ(line, "03,,,,,,,,,,,4,,true,,,,,,0.25" + std::string(25, ',') + "n1\n");
  EXPECT_EQ(std::count(line.begin(), line.end(), ','), 44);
  EXPECT_TRUE(row.has("ranks"));
  EXPECT_FALSE(row.has("nodes"));
}

TEST_F(Csv, NumbersReadBackAsTheSame) {
  for (const double value : {0.1, 1.0 / 3, 1e-300, 123456789.123456789, -0.0}) {
    Row row;
    row.set("rate", value);
    EXPECT_EQ(std::stod(row.get("rate")), value);
  }
  Row row;
  row.set("bytes", int64_t{1} << 40).set("rate", 1.5f);
  EXPECT_EQ(row.get("bytes"), "1099511627776");
  EXPECT_EQ(row.get("rate"), "1.5");
}

TEST_F(Csv, NotFiniteIsExit70AndNamesTheColumn) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    try {
      Row().set("loss", value);
      ADD_FAILURE() << "accepted " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code, Exit::disagree);
      EXPECT_NE(error.cause.find("loss"), std::string::npos);
    }
  }
}

TEST_F(Csv, QuotesWhereNeeded) {
  EXPECT_EQ(csv_quote("plain text"), "plain text");
  EXPECT_EQ(csv_quote("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_quote("say \"hi\""), "\"say \"\"hi\"\"\"");
  EXPECT_EQ(csv_quote("two\nlines"), "\"two\nlines\"");
  EXPECT_EQ(csv_quote(""), "");
}

TEST_F(Csv, WritesTheHeaderOnceAndAppends) {
  Row row;
  row.set("lesson", "a,b");
  CsvWriter(path_).append(row);
  CsvWriter(path_).append(row);
  EXPECT_EQ(content(), csv_header() + row.line() + row.line());
}

TEST_F(Csv, RefusesAnotherHeader) {
  std::string header = csv_header();
  header.replace(header.find("lesson"), 6, "lektion");
  put(header);
  EXPECT_EQ(refusal(), "column 2 of its header is 'lektion', where this program writes 'lesson'");
  EXPECT_EQ(content(), header) << "a refused file must stay as it was";
}

TEST_F(Csv, RefusesMissingAndExtraColumns) {
  put("chapter,lesson\n");
  EXPECT_EQ(refusal(), "column 3 of its header is missing, where this program writes 'variant'");
  std::string header = csv_header();
  header.insert(header.size() - 1, ",extra");
  put(header);
  EXPECT_EQ(refusal(), "column 46 of its header is 'extra', where this program writes nothing more");
}

TEST_F(Csv, RefusesHalfARow) {
  put(csv_header() + "03,naive");
  EXPECT_NE(refusal().find("middle of a row"), std::string::npos);
}

TEST_F(Csv, SaysWhyItCannotOpen) {
  path_ = "/no/such/folder/x.csv";
  EXPECT_EQ(refusal(), "No such file or directory");
}

TEST_F(Csv, RowsOfManyWritersNeverMix) {
  constexpr int writers = 4, rows = 50;
  std::vector<std::thread> threads;
  for (int w = 0; w < writers; ++w)
    threads.emplace_back([&, w] {
      Row row;
      row.set("variant", std::string(200, static_cast<char>('a' + w)));
      CsvWriter writer(path_);
      for (int i = 0; i < rows; ++i) writer.append(row);
    });
  for (auto& thread : threads) thread.join();
  std::istringstream lines(content());
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line + "\n", csv_header());
  int count = 0;
  for (; std::getline(lines, line); ++count) {
    ASSERT_EQ(line.size(), 200u + 44);
    EXPECT_EQ(std::count(line.begin(), line.end(), line[2]), 200);
  }
  EXPECT_EQ(count, writers * rows);
}

}  // namespace
}  // namespace manyranks
