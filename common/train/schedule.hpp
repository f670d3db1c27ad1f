// The learning rate as a function of the step: pure, so that a resumed run needs nothing but the step number.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace manyranks {

using Schedule = std::function<double(int64_t step)>;  // step 0 is the first

Schedule constant_rate(double rate);

// Rises linearly over `warmup` steps (the first step already has rate peak/warmup), then falls to `final_rate` at `total` along
// half a cosine and stays there.
Schedule warmup_cosine(double peak, int64_t warmup, int64_t total, double final_rate = 0.0);

// Multiplied by `factor` at each milestone.
Schedule step_decay(double base, std::vector<int64_t> milestones, double factor = 0.1);

// Any schedule behind a linear warm-up of `warmup` steps.
Schedule with_warmup(Schedule schedule, int64_t warmup);

// Goyal et al. 2017: a k times larger batch takes a k times larger rate (with warm-up, and up to a limit that is the subject of
// a lesson in chapter 03).
double linear_scaling(double base_rate, int64_t global_batch, int64_t reference_batch = 256);

}  // namespace manyranks
