#include "measure/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "measure/table.hpp"  // format_seconds

namespace manyranks {

std::string progress_line(const std::string& label, int64_t done, int64_t total, double elapsed_s, const std::string& note) {
  constexpr int64_t width = 24;
  const int64_t filled = total > 0 ? std::clamp<int64_t>(done * width / total, 0, width) : 0;
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < width) bar += '>';
  bar.resize(width, ' ');
  std::string line = fmt::format("{} [{}] {}/{}", label, bar, done, total);
  if (done > 0 && elapsed_s > 0) {
    const double rate = static_cast<double>(done) / elapsed_s;
    line += fmt::format("  {:.1f}/s  {} left", rate, format_seconds(static_cast<double>(std::max<int64_t>(0, total - done)) / rate));
  }
  return note.empty() ? line : line + "  " + note;
}

Progress::Progress(std::string label, int64_t total, bool is_root)
    : label_(std::move(label)), total_(total), visible_(is_root && isatty(STDERR_FILENO)) {}

Progress::~Progress() {
  if (visible_ && drawn_ != Clock::time_point{}) std::fputs("\r\033[K", stderr);
}

void Progress::update(int64_t done, const std::string& note) {
  if (!visible_) return;
  const auto now = Clock::now();
  if (now - drawn_ < std::chrono::milliseconds(100) && done < total_) return;
  drawn_ = now;
  const double elapsed_s = std::chrono::duration<double>(now - start_).count();
  fmt::print(stderr, "\r\033[K{}", progress_line(label_, done, total_, elapsed_s, note));
  std::fflush(stderr);
}

}  // namespace manyranks
