// A progress bar on rank 0's terminal; nothing in a log file or on other ranks.
//
//   Progress progress("training", steps, process.is_root());
//   for (...) progress.update(step, fmt::format("loss {:.3f}", loss));
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace manyranks {

// "training [=====>    ] 120/400  30.0/s  9.33 s left  loss 0.412"
std::string progress_line(const std::string& label, int64_t done, int64_t total, double elapsed_s, const std::string& note);

class Progress {
 public:
  Progress(std::string label, int64_t total, bool is_root);  // draws only if standard error is a terminal
  ~Progress();                                               // wipes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, const std::string& note = "");  // draws ten times a second at most

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  int64_t total_;
  bool visible_;
  Clock::time_point start_ = Clock::now(), drawn_{};
};

}  // namespace manyranks
