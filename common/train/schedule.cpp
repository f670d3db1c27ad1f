#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "launch/errors.hpp"

namespace manyranks {

Schedule constant_rate(double rate) {
  return [rate](int64_t) { return rate; };
}

Schedule warmup_cosine(double peak, int64_t warmup, int64_t total, double final_rate) {
  if (warmup < 0 || total <= warmup) throw usage_error("warmup_cosine", "the warm-up must end before the last step");
  return with_warmup(
      [=](int64_t step) {
        const double done = std::clamp(static_cast<double>(step - warmup) / static_cast<double>(total - warmup), 0.0, 1.0);
        return final_rate + (peak - final_rate) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
      },
      warmup);
}

Schedule step_decay(double base, std::vector<int64_t> milestones, double factor) {
  return [=, milestones = std::move(milestones)](int64_t step) {
    const auto passed = std::count_if(milestones.begin(), milestones.end(), [&](int64_t at) { return step >= at; });
    return base * std::pow(factor, static_cast<double>(passed));
  };
}

Schedule with_warmup(Schedule schedule, int64_t warmup) {
  return [schedule = std::move(schedule), warmup](int64_t step) {
    if (step >= warmup) return schedule(step);
    return schedule(warmup) * static_cast<double>(step + 1) / static_cast<double>(warmup);
  };
}

double linear_scaling(double base_rate, int64_t global_batch, int64_t reference_batch) {
  return base_rate * static_cast<double>(global_batch) / static_cast<double>(reference_batch);
}

}  // namespace manyranks
