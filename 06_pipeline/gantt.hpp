// A schedule in time, as text: two characters per unit, F0 forward, B0 backward (whole or input), W0 weight gradient of microbatch 0.
//
//   stage 0 |F0F1......B0B0B1B1|
//   stage 1 |..F0F1B0B0B1B1....|
#pragma once

#include <string>
#include <vector>

#include "count.hpp"

namespace manyranks::pipeline {

// `unit` is the time of one cell; a cell shows the computation that runs in its middle; messages are not drawn. Time zero is the first start of all stages. Microbatches
// are shown by their last digit, and forward passes of odd chunks as "f", so that neighbours differ.
std::string draw_gantt(const std::vector<std::vector<Span>>& timeline, double unit);

// Idle time over all time, all stages together, from the first start to the last end.
double measured_bubble(const std::vector<std::vector<Span>>& timeline);
double measured_makespan(const std::vector<std::vector<Span>>& timeline);

// One stage's spans as text and back, to bring them to rank 0.
std::string spans_to_text(const std::vector<Span>& spans);
std::vector<Span> spans_from_text(const std::string& text);

}  // namespace manyranks::pipeline
