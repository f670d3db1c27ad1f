#include "measure/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "measure/table.hpp"

namespace manyranks {

void Comparison::bytes(const std::string& quantity, double predicted, double measured) {
  add(quantity, format_bytes(static_cast<int64_t>(predicted)), format_bytes(static_cast<int64_t>(measured)), predicted, measured);
}

void Comparison::count(const std::string& quantity, double predicted, double measured) {
  add(quantity, fmt::format("{:g}", predicted), fmt::format("{:g}", measured), predicted, measured);
}

void Comparison::add(const std::string& quantity, std::string predicted_text, std::string measured_text, double predicted, double measured) {
  const double error = predicted == measured ? 0.0 : predicted == 0 ? std::numeric_limits<double>::infinity() : (measured - predicted) / predicted;
  worst_ = std::max(worst_, std::abs(error));
  rows_.push_back({quantity, std::move(predicted_text), std::move(measured_text),
                   std::isinf(error) ? "-" : predicted == 0 ? "0.0%" : fmt::format("{:+.2f}%", 100.0 * error)});
}

std::string Comparison::text() const {
  Table table({"quantity", "predicted", "measured", "error"});
  for (const auto& row : rows_) table.add(row);
  return table.text(2);
}

}  // namespace manyranks
