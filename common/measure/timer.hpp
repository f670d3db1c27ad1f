// Times of steps, as the whole job sees them: a step takes as long as its slowest rank.
//
//   const Timing timing = time_steps(world, /*warmup=*/5, /*steps=*/50, [&] { train_step(); });
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace manyranks {

class Communicator;

class WallTimer {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void restart() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

struct Timing {
  double median = 0, p95 = 0;   // seconds, over steps
  std::vector<double> samples;  // per step, the maximum over ranks
};

// For loops that time_steps() does not fit. Waits for the GPU's queue at both ends of a step if this process uses one.
class StepTimer {
 public:
  explicit StepTimer(int64_t warmup) : warmup_(warmup) {}
  void start();
  void stop();                                               // the first `warmup` steps are dropped
  void add(double seconds);                                  // a step that was timed by other means, as stop() does
  const std::vector<double>& mine() const { return mine_; }  // this rank's own times

  // Collective: one all_reduce over all steps at the end, so that timing adds no traffic to the steps themselves.
  Timing over_ranks(Communicator& communicator) const;

 private:
  int64_t warmup_;
  WallTimer timer_;
  std::vector<double> mine_;
};

// Runs `step` warmup + steps times on every rank, with a barrier before the first timed one.
Timing time_steps(Communicator& communicator, int64_t warmup, int64_t steps, const std::function<void()>& step);

// Waits until the current GPU has done all that was asked of it; nothing where no GPU is in use.
void finish_device_work();

}  // namespace manyranks
