#include "schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "launch/errors.hpp"

namespace manyranks::pipeline {

const char* kind_name(Kind kind) {
  static constexpr std::array names{"forward",         "backward",           "backward_input", "backward_weight",
                                    "send_activation", "receive_activation", "send_gradient",  "receive_gradient"};
  return names[static_cast<size_t>(kind)];
}

std::string to_string(const Action& action) {
  std::string text = fmt::format("{} of microbatch {}", kind_name(action.kind), action.microbatch);
  return action.chunk == 0 ? text : fmt::format("{} (chunk {})", text, action.chunk);
}

std::optional<Schedule::Place> Schedule::peer(int stage, const Action& action) const {
  if (is_compute(action.kind) || stages == 1) return std::nullopt;
  const bool downstream = action.kind == Kind::send_activation || action.kind == Kind::receive_gradient;
  const int other = virtual_stage(stage, action.chunk) + (downstream ? 1 : -1);
  if (other < 0 || other >= virtual_stages()) return std::nullopt;
  return place(other);
}

static constexpr std::string_view header = "stage,action,microbatch,chunk";

std::string schedule_to_csv(const Schedule& schedule) {
  std::string text = fmt::format("{}\n", header);
  for (int stage = 0; stage < schedule.stages; ++stage)
    for (const Action& action : schedule.actions[stage])
      text += fmt::format("{},{},{},{}\n", stage, kind_name(action.kind), action.microbatch, action.chunk);
  return text;
}

namespace {

struct Reader {
  std::string file;
  int line = 0;

  Error bad(const std::string& cause) const { return data_error(fmt::format("schedule {}:{}", file, line), cause); }

  int number(std::string_view cell, const char* column, int limit) const {
    int value = -1;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size() || value < 0 || value >= limit)
      throw bad(fmt::format("{} '{}' is not a whole number from 0 to {}", column, std::string(cell.substr(0, 40)), limit - 1));
    return value;
  }

  Kind kind(std::string_view cell) const {
    for (Kind kind : all_kinds)
      if (cell == kind_name(kind)) return kind;
    throw bad(fmt::format("unknown action '{}'", std::string(cell.substr(0, 40))));
  }

  std::array<std::string_view, 4> cells(std::string_view row) const {
    std::array<std::string_view, 4> cells;
    for (size_t i = 0; i < cells.size(); ++i) {
      const size_t comma = row.find(',');
      if ((comma == row.npos) != (i + 1 == cells.size())) throw bad(fmt::format("a row has 4 cells ({})", header));
      cells[i] = row.substr(0, comma);
      row.remove_prefix(comma == row.npos ? row.size() : comma + 1);
    }
    return cells;
  }
};

}  // namespace

Schedule schedule_from_csv(std::string_view text, const std::string& file) {
  Reader reader{file};
  Schedule schedule{.name = file, .stages = 0, .microbatches = 0, .chunks = 0, .actions = {}};
  size_t rows = 0;
  while (!text.empty()) {
    ++reader.line;
    const size_t end = text.find('\n');
    if (end == text.npos) throw reader.bad("the last line does not end: was the file cut off?");
    std::string_view row = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
    if (reader.line == 1) {
      if (row != header) throw reader.bad(fmt::format("the first line must be '{}'", header));
      continue;
    }
    const auto cells = reader.cells(row);
    const int stage = reader.number(cells[0], "stage", 4096);
    const Action action{reader.kind(cells[1]), reader.number(cells[2], "microbatch", 1 << 20), reader.number(cells[3], "chunk", 256)};
    if (stage != schedule.stages && stage != schedule.stages - 1)
      throw reader.bad(fmt::format("stage {} after stage {}: stages come in order, none left out", stage, schedule.stages - 1));
    if (stage == schedule.stages) {
      ++schedule.stages;
      schedule.actions.emplace_back();
    }
    schedule.actions[stage].push_back(action);
    schedule.microbatches = std::max(schedule.microbatches, action.microbatch + 1);
    schedule.chunks = std::max(schedule.chunks, action.chunk + 1);
    ++rows;
  }
  ++reader.line;
  if (rows == 0) throw reader.bad("no actions");
  // Every microbatch passes every virtual stage forward and backward. This also keeps a short file from asking for a large table.
  const size_t least = size_t{2} * schedule.stages * schedule.microbatches * schedule.chunks;
  if (rows < least)
    throw reader.bad(fmt::format("{} rows, but {} stages, {} microbatches and {} chunks need {} at least", rows, schedule.stages,
                                 schedule.microbatches, schedule.chunks, least));
  return schedule;
}

void save_schedule(const Schedule& schedule, const std::string& file) {
  std::ofstream out(file, std::ios::binary);
  out << schedule_to_csv(schedule);
  out.close();
  if (!out) throw io_error("schedule " + file, "cannot write");
}

Schedule load_schedule(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) throw io_error("schedule " + file, "cannot read");
  return schedule_from_csv(text.str(), file);
}

}  // namespace manyranks::pipeline
