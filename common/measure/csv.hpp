// One row per measurement, the same columns in every program, appended by rank 0.
//
//   Row row;
//   row.set("variant", "bucketed").set("ranks", 4).set("median_s", timing.median);
//   CsvWriter("results.csv").append(row);
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace manyranks {

inline constexpr std::array<std::string_view, 45> csv_columns{
    "chapter",      "lesson",       "variant",   "workload",       "kind",        "scaling",   "device",   "gpu",      "backend",
    "transport",    "nodes",        "ranks",     "threads",        "oversubscribed", "batch",  "global_batch", "dtype", "bytes",
    "iterations",   "median_s",     "p95_s",     "rate",           "rate_unit",   "algbw_GBs", "busbw_GBs", "sent_bytes", "peak_bytes",
    "data_wait_s",  "compute_s",    "exposed_comm_s", "optimizer_s", "predicted", "measured",  "unit",     "loss",
    "run_id",       "repeat",       "commit",    "dirty",          "torch",       "nccl",      "mpi",      "driver",   "date",
    "host"};

// A column's name, checked by the compiler: row.set("medain_s", 1.0) does not compile.
class Column {
 public:
  consteval Column(const char* name) : index_(find(name)) {}
  size_t index() const { return index_; }

 private:
  static consteval size_t find(std::string_view name) {
    for (size_t i = 0; i < csv_columns.size(); ++i)
      if (csv_columns[i] == name) return i;
    throw "no such column";  // in a consteval function: a compile error
  }
  size_t index_;
};

class Row {
 public:
  Row& set(Column column, std::string_view text);
  Row& set(Column column, const char* text) { return set(column, std::string_view(text)); }
  Row& set(Column column, bool value) { return set(column, value ? "true" : "false"); }
  Row& set(Column column, std::integral auto value) { return set(column, std::string_view(std::to_string(value))); }
  // Throws exit 70 for NaN and infinity: a figure that is no number must not look like a missing one.
  Row& set(Column column, double value);

  const std::string& get(Column column) const { return cells_[column.index()]; }
  bool has(Column column) const { return !get(column).empty(); }
  std::string line() const;  // quoted as RFC 4180 says, with the new line

 private:
  std::array<std::string, csv_columns.size()> cells_;
};

std::string csv_header();                       // with the new line
std::string csv_quote(std::string_view cell);   // quotes only where needed

class CsvWriter {
 public:
  // Creates the file with the header, or checks the header that it has. Throws exit 74 naming the file and, if the
  // header differs, the first column that does.
  explicit CsvWriter(std::string path);
  // One write() in append mode: rows of programs that share a file never mix.
  void append(const Row& row);

 private:
  std::string path_;
};

}  // namespace manyranks
