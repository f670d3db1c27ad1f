// What a schedule costs, counted exactly: times in whole units, fractions as fractions. No clock, no machine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule.hpp"

namespace manyranks::pipeline {

struct Fraction {
  int64_t numerator = 0, denominator = 1;  // in lowest terms, denominator > 0
  static Fraction of(int64_t numerator, int64_t denominator);
  double value() const { return static_cast<double>(numerator) / static_cast<double>(denominator); }
  bool operator==(const Fraction&) const = default;
  bool operator<(const Fraction& other) const { return numerator * other.denominator < other.numerator * denominator; }
};

// Of one chunk and one microbatch, the same on every stage. The whole backward costs input + weight. Messages cost nothing.
struct Costs {
  int64_t forward = 1, input = 1, weight = 1;
  int64_t backward() const { return input + weight; }
  int64_t of(Kind kind) const;
};

// When one action runs. Times are in units (ideal) or in seconds (measured).
struct Span {
  Action action;
  double start = 0, end = 0;
};

struct Count {
  int64_t makespan = 0;                    // from the first start to the last end
  std::vector<int64_t> busy;               // by stage
  Fraction bubble;                         // idle time over all time, all stages together
  std::vector<int> peak_live;              // by stage: most (microbatch, chunk) pairs held, from forward to the end of backward
  std::vector<std::vector<Span>> timeline; // by stage, computations only
};

// Each action starts when the one before it on its stage is done and its message is there. The schedule must be sound (check.hpp).
Count count(const Schedule& schedule, const Costs& costs = {});

// Most (microbatch, chunk) pairs held at once on a stage. The position where the peak is first reached goes to `at`.
int peak_live(const Schedule& schedule, int stage, int* at = nullptr);

// Theory, where there is one: interleaved only where p divides m, zb-h1 where m >= p and neither forward nor the
// input part of backward is shorter than the weight part.
//   naive                  (p-1) / p
//   gpipe, 1f1b            (p-1) / (m + p-1)
//   interleaved            (p-1) / (vm + p-1)
//   zb-h1                  (p-1)(F + B - 2W) / (m(F + B) + (p-1)(F + B - 2W)),   B the whole backward
std::optional<Fraction> theory_bubble(const Schedule& schedule, const Costs& costs = {});
//   naive 1; gpipe m; 1f1b min(m, p-i); interleaved min(vm, 2(p-1-i) + (v-1)p + 1); zb-h1 min(m, p)
std::optional<int> theory_peak_live(const Schedule& schedule, int stage);

}  // namespace manyranks::pipeline
