#include "gantt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace manyranks::pipeline {

namespace {

struct Window {
  double start = std::numeric_limits<double>::infinity(), end = -std::numeric_limits<double>::infinity();
};

Window window_of(const std::vector<std::vector<Span>>& timeline) {
  Window window;
  for (const auto& spans : timeline)
    for (const Span& span : spans) {
      if (!is_compute(span.action.kind)) continue;
      window.start = std::min(window.start, span.start);
      window.end = std::max(window.end, span.end);
    }
  return window;
}

char letter(const Action& action) {
  const bool odd = action.chunk % 2 == 1;
  if (action.kind == Kind::forward) return odd ? 'f' : 'F';
  if (action.kind == Kind::backward_weight) return odd ? 'w' : 'W';
  return odd ? 'b' : 'B';
}

}  // namespace

std::string draw_gantt(const std::vector<std::vector<Span>>& timeline, double unit) {
  const Window window = window_of(timeline);
  const auto cells = static_cast<size_t>(std::max(0.0, std::ceil((window.end - window.start) / unit - 1e-9)));
  std::string text;
  for (size_t stage = 0; stage < timeline.size(); ++stage) {
    std::string row(2 * cells, '.');
    for (const Span& span : timeline[stage])
      for (size_t cell = 0; cell < cells; ++cell) {
        const double middle = window.start + (static_cast<double>(cell) + 0.5) * unit;
        if (!is_compute(span.action.kind) || middle < span.start || middle >= span.end) continue;
        row[2 * cell] = letter(span.action);
        row[2 * cell + 1] = static_cast<char>('0' + span.action.microbatch % 10);
      }
    text += fmt::format("  stage {} |{}|\n", stage, row);
  }
  return text;
}

double measured_makespan(const std::vector<std::vector<Span>>& timeline) {
  const Window window = window_of(timeline);
  return std::max(0.0, window.end - window.start);
}

double measured_bubble(const std::vector<std::vector<Span>>& timeline) {
  double busy = 0;
  for (const auto& spans : timeline)
    for (const Span& span : spans)
      if (is_compute(span.action.kind)) busy += span.end - span.start;
  const double all = measured_makespan(timeline) * static_cast<double>(timeline.size());
  return all > 0 ? 1 - busy / all : 0;
}

std::string spans_to_text(const std::vector<Span>& spans) {
  std::string text;
  for (const Span& span : spans)
    text += fmt::format("{} {} {} {:.9f} {:.9f}\n", static_cast<int>(span.action.kind), span.action.microbatch, span.action.chunk, span.start, span.end);
  return text;
}

std::vector<Span> spans_from_text(const std::string& text) {
  std::vector<Span> spans;
  std::istringstream in(text);
  int kind = 0;
  Span span;
  while (in >> kind >> span.action.microbatch >> span.action.chunk >> span.start >> span.end) {
    span.action.kind = static_cast<Kind>(kind);
    spans.push_back(span);
  }
  return spans;
}

}  // namespace manyranks::pipeline
