#include "measure/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

template <typename Clock>
double seconds_of() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

nlohmann::json metadata(int rank, int lane, const char* what, nlohmann::json arguments) {
  return {{"ph", "M"}, {"pid", rank}, {"tid", lane}, {"name", what}, {"args", std::move(arguments)}};
}

}  // namespace

Trace::Trace(int rank, std::string host)
    : rank_(rank), host_(std::move(host)), wall_at_start_s_(seconds_of<std::chrono::system_clock>()), steady_at_start_s_(seconds_of<std::chrono::steady_clock>()) {}

double Trace::now_s() const { return wall_at_start_s_ + (seconds_of<std::chrono::steady_clock>() - steady_at_start_s_); }

void Trace::complete(const std::string& lane, const std::string& name, double start_s, double end_s) {
  const std::lock_guard lock(mutex_);
  const int number = lanes_.try_emplace(lane, static_cast<int>(lanes_.size())).first->second;
  events_.push_back({number, name, start_s, end_s});
}

Trace::Span::Span(Trace& trace, std::string lane, std::string name)
    : trace_(trace), lane_(std::move(lane)), name_(std::move(name)), start_s_(trace.now_s()) {}

Trace::Span::~Span() { trace_.complete(lane_, name_, start_s_, trace_.now_s()); }

std::string Trace::to_json_events() const {
  const std::lock_guard lock(mutex_);
  auto events = nlohmann::json::array();
  events.push_back(metadata(rank_, 0, "process_name", {{"name", fmt::format("rank {} ({})", rank_, host_)}}));
  events.push_back(metadata(rank_, 0, "process_sort_index", {{"sort_index", rank_}}));
  for (const auto& [name, lane] : lanes_) {
    events.push_back(metadata(rank_, lane, "thread_name", {{"name", name}}));
    events.push_back(metadata(rank_, lane, "thread_sort_index", {{"sort_index", lane}}));
  }
  for (const auto& event : events_)
    events.push_back({{"ph", "X"}, {"pid", rank_}, {"tid", event.lane}, {"name", event.name},
                      {"ts", event.start_s * 1e6}, {"dur", (event.end_s - event.start_s) * 1e6}});
  return events.dump();
}

std::string merge_traces(const std::vector<std::string>& parts) {
  auto all = nlohmann::json::array();
  double first_us = std::numeric_limits<double>::infinity();
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    auto part = nlohmann::json::parse(parts[rank], nullptr, /*allow_exceptions=*/false);
    if (!part.is_array()) throw data_error("merging traces", fmt::format("the part of rank {} is no JSON array", rank));
    for (auto& event : part) {
      if (event.contains("ts")) first_us = std::min(first_us, event["ts"].get<double>());
      all.push_back(std::move(event));
    }
  }
  for (auto& event : all)
    if (event.contains("ts")) event["ts"] = event["ts"].get<double>() - first_us;
  return nlohmann::json{{"traceEvents", std::move(all)}, {"displayTimeUnit", "ms"}}.dump();
}

void write_trace(const std::string& path, const std::vector<std::string>& parts) {
  std::ofstream file(path, std::ios::binary);
  file << merge_traces(parts) << '\n';
  file.close();
  if (!file) throw io_error("writing " + path, std::strerror(errno));
}

}  // namespace manyranks
