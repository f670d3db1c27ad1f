// The schedules of this chapter, for p stages, m microbatches and (interleaved only) v chunks per stage.
#pragma once

#include <string>
#include <vector>

#include "schedule.hpp"

namespace manyranks::pipeline {

Schedule naive_schedule(int stages, int microbatches);        // one microbatch at a time: one stage works, the others wait
Schedule gpipe_schedule(int stages, int microbatches);        // all forward, then all backward: holds m activations
Schedule one_f_one_b_schedule(int stages, int microbatches);  // backward as early as possible: holds min(m, p - stage)
Schedule interleaved_schedule(int stages, int microbatches, int chunks);  // 1F1B over p*v virtual stages: v times less to wait
Schedule zero_bubble_schedule(int stages, int microbatches);  // ZB-H1: weight gradients fill the wait

// By name: naive | gpipe | 1f1b | interleaved | zb-h1. Throws a usage error for another name, and for chunks > 1 where there are none.
Schedule generate(const std::string& name, int stages, int microbatches, int chunks = 1);
std::vector<std::string> schedule_names();

// From computations alone to a schedule that runs: a receive before each one that needs a message, a send right behind each one
// that somebody waits for.
Schedule with_messages(Schedule computations);

}  // namespace manyranks::pipeline
