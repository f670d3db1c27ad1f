// What an exercise's judge.cpp is written in: run the learner's code, look at what it did, say which check it passed. No LibTorch.
//
//   void judge(Bench& bench) {
//     auto* step = bench.entry<decltype(sgd_step)>("sgd_step");
//     bench.learner("result", [&] { step(...); });                       // counted, guarded; a hang or a crash here is result's
//     if (!bench.require("result", close, text("p[%zu] is %g, not %g", i, got, want))) return;
//     bench.require("traffic", bench.counts().bytes_sent <= limit, text(...), "too_many");   // "too_many": a hint of its own
//   }
//
// Every rank runs the judge, with the same calls in the same order: require() is a meeting of all ranks.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "kit.hpp"

namespace manyranks {

struct Counts {  // of one learner() call, on this rank
  int64_t bytes_sent = 0;
  int64_t messages = 0;     // send, and the sending half of send_recv
  int64_t collectives = 0;
  int64_t all_reduces = 0;
  int64_t rounds = 0;       // the longest chain of messages that had to wait for each other and ends here
  std::vector<int> sent_to;
};

class Bench {
 public:
  virtual ~Bench() = default;
  virtual Ranks& ranks() = 0;
  int rank() { return ranks().rank(); }
  int size() { return ranks().size(); }
  virtual uint64_t seed() const = 0;         // drawn by the grader: hidden inputs depend on it

  // Runs the learner's code under the name of a check. Meets all ranks before it starts.
  virtual void learner(const char* check, const std::function<void()>& code) = 0;
  virtual Counts counts() const = 0;         // of the last learner()
  virtual int64_t peak_bytes() const = 0;    // most heap bytes that the last learner() held at once
  // True if `ok` on every rank. `seen` says what was found (the first rank's that failed); `hint` names a hint of exercise.toml.
  virtual bool require(const char* check, bool ok, const std::string& seen, const char* hint = "") = 0;
  // What one all-reduce of that many numbers sends from this rank here, found by making one. A meeting of all ranks.
  virtual int64_t all_reduce_bytes(size_t elements) = 0;
  // "calls" and "bytes": the last learner() made one collective (on one rank, none will do) and no message, and sent no more than one all-reduce of that many numbers.
  void require_one_all_reduce(size_t elements);
  // Everybody's numbers, by rank, uncounted. All ranks bring the same number of them.
  virtual std::vector<float> collect(std::span<const float> mine) = 0;

  template <class Function>
  Function* entry(const char* name) { return reinterpret_cast<Function*>(symbol(name)); }

 protected:
  virtual void* symbol(const char* name) = 0;
};

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Where two arrays differ by more than the tolerance (relative to the larger of 1 and the value): that index, or -1. NaN differs from all.
inline int64_t first_difference(std::span<const float> got, std::span<const float> want, float tolerance = 0) {
  if (got.size() != want.size()) return 0;
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::fabs(got[i] - want[i]) <= tolerance * std::max(1.0f, std::fabs(want[i])))) return static_cast<int64_t>(i);
  return -1;
}
std::string difference(const char* what, std::span<const float> got, std::span<const float> want, float tolerance = 0);

// Small whole numbers: sums and products of them are exact in float, in any order.
inline std::vector<float> whole_numbers(size_t count, uint64_t seed, int limit = 8) {
  Random random(seed);
  std::vector<float> out(count);
  for (auto& x : out) x = static_cast<float>(random.below(2 * limit + 1) - limit);
  return out;
}

}  // namespace manyranks
