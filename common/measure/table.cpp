#include "measure/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <stdexcept>

namespace manyranks {
namespace {

// Terminal columns, not bytes: UTF-8 continuation bytes take none.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

bool is_number_like(const std::string& cell) {
  if (cell.empty() || cell == "-") return true;
  const size_t first = cell[0] == '-' || cell[0] == '+' ? 1 : 0;
  return first < cell.size() && (std::isdigit(static_cast<unsigned char>(cell[first])) || cell[first] == '.');
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  // 1023.97 KiB would print as 1024.0 KiB.
  if (unit > 0 && std::abs(value) >= 1023.95 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (!std::isfinite(seconds)) return fmt::format("{} s", seconds);
  if (size >= 3600) return fmt::format("{}h{:02}m", static_cast<long>(seconds / 3600), static_cast<long>(size / 60) % 60);
  if (size >= 60) return fmt::format("{}m{:02}s", static_cast<long>(seconds / 60), static_cast<long>(size) % 60);
  if (size >= 1) return fmt::format("{:.3g} s", seconds);
  if (size >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (size >= 1e-6) return fmt::format("{:.3g} us", seconds * 1e6);
  return seconds == 0 ? "0 s" : fmt::format("{:.3g} ns", seconds * 1e9);
}

Table::Table(std::vector<std::string> header) : header_(std::move(header)) {}

void Table::add(std::vector<std::string> row) {
  if (row.size() != header_.size())
    throw std::logic_error(fmt::format("a row of {} cells in a table of {} columns", row.size(), header_.size()));
  rows_.push_back(std::move(row));
}

std::string Table::text(int indent) const {
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (size_t column = 0; column < header_.size(); ++column) {
    size_t width = width_of(header_[column]);
    bool numbers = !rows_.empty();
    for (const auto& row : rows_) {
      width = std::max(width, width_of(row[column]));
      numbers = numbers && is_number_like(row[column]);
    }
    widths.push_back(width);
    right.push_back(numbers);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text(static_cast<size_t>(indent), ' ');
    for (size_t column = 0; column < cells.size(); ++column) {
      const std::string pad(widths[column] - width_of(cells[column]), ' ');
      if (column) text += "  ";
      text += right[column] ? pad + cells[column] : cells[column] + pad;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::vector<std::string> rule;
  for (const size_t width : widths) rule.emplace_back(width, '-');
  std::string text = line(header_) + line(rule);
  for (const auto& row : rows_) text += line(row);
  return text;
}

}  // namespace manyranks
