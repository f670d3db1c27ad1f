// Text tables for rank 0, and figures for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace manyranks {

std::string format_bytes(int64_t bytes);     // "512 B", "4.0 KiB", "1.5 GiB"
std::string format_seconds(double seconds);  // "830 ns", "4.21 ms", "2m05s"

// Columns as wide as their widest cell; a column whose cells all begin like numbers is right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);  // as many cells as the header
  std::string text(int indent = 0) const;  // header, rule, rows; ends with a new line

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace manyranks
