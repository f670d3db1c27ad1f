// Predict, then measure: "quantity | predicted | measured | error" as a table.
#pragma once

#include <string>
#include <vector>

namespace manyranks {

class Comparison {
 public:
  void bytes(const std::string& quantity, double predicted, double measured);
  void count(const std::string& quantity, double predicted, double measured);
  std::string text() const;

  // The largest |measured - predicted| / predicted of all rows; where 0 was predicted, 0 or infinity.
  double worst() const { return worst_; }

 private:
  void add(const std::string& quantity, std::string predicted_text, std::string measured_text, double predicted, double measured);
  std::vector<std::vector<std::string>> rows_;
  double worst_ = 0;
};

}  // namespace manyranks
