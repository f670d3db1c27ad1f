#include "05_loss_scaler.hpp"

#include <limits>

#include "bench.hpp"

namespace manyranks {

namespace {
constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

// What the scaler should be: the same rules, with one list of bad steps for everybody.
struct Expected {
  float scale = 65536;
  int good = 0;
  void step(bool bad, int interval) {
    if (bad) scale *= 0.5f, good = 0;
    else if (++good == interval) scale *= 2, good = 0;
  }
};

struct Step {
  int bad_rank = -1;  // nobody
  float value = inf;
};

class Trainer {
 public:
  Trainer(Bench& bench, int interval, size_t n, uint64_t seed) : bench_(bench), unscale_(bench.entry<decltype(unscale_and_update)>("unscale_and_update")), n_(n), seed_(seed) { scaler_.growth_interval = interval; }

  // One training step: does the scaler decide, divide and change as it should? The first fault goes to the check that it belongs to.
  bool step(const char* check, const Step& what, const char* hint = "") {
    const auto true_gradients = whole_numbers(n_, seed_ + static_cast<uint64_t>(++number_) * 100 + static_cast<uint64_t>(bench_.rank()), 100);
    std::vector<float> gradients(true_gradients);
    for (auto& g : gradients) g *= scaler_.scale;
    if (what.bad_rank == bench_.rank()) gradients[static_cast<size_t>(37 * number_) % n_] = what.value;
    const bool bad = what.bad_rank >= 0;
    bool stepped = false;
    bench_.learner(check, [&] { stepped = unscale_(bench_.ranks(), scaler_, gradients); });
    if (!bench_.require(check, stepped == !bad, text("step %d, %s: the optimiser %s step here", number_, bad ? text("%g on rank %d", what.value, what.bad_rank).c_str() : "all gradients finite", stepped ? "may" : "may not"), hint)) return false;
    expected_.step(bad, scaler_.growth_interval);
    if (std::string_view(check) == "agree") return true;  // the rest is worth something only where the ranks agree
    if (stepped && !bench_.require(named(check, "unscaled"), first_difference(gradients, true_gradients, 1e-6f) < 0, text("step %d: ", number_) + difference("gradients", gradients, true_gradients, 1e-6f))) return false;
    if (!bench_.require(named(check, "schedule"), scaler_.scale == expected_.scale, text("after step %d the scale is %g, it should be %g", number_, scaler_.scale, expected_.scale))) return false;
    const Counts counts = bench_.counts();
    return bench_.require("traffic", counts.collectives <= 1 && counts.messages == 0 && counts.bytes_sent <= 64, text("%ld collectives, %ld messages, %ld bytes; one flag is enough", static_cast<long>(counts.collectives), static_cast<long>(counts.messages), static_cast<long>(counts.bytes_sent)));
  }

 private:
  static const char* named(const char* check, const char* part) { return std::string_view(check) == "hidden" ? check : part; }
  Bench& bench_;
  decltype(unscale_and_update)* unscale_;
  size_t n_;
  uint64_t seed_;
  Scaler scaler_;
  Expected expected_;
  int number_ = 0;
};
}  // namespace

void judge_05_loss_scaler(Bench& bench) {
  const int last = bench.size() - 1;
  {
    Trainer trainer(bench, 4, 50, 1);
    for (const Step& step : {Step{}, Step{last, inf}, Step{0, -inf}}) if (!trainer.step("agree", step)) return;
    if (!trainer.step("agree", {last, nan}, "nan")) return;
  }
  {
    Trainer trainer(bench, 4, 50, 2);  // growth, overflow in the middle of a row of good steps, growth again
    for (const int bad : {-1, -1, -1, -1, -1, -1, -1, last, -1, -1, -1, -1, -1}) if (!trainer.step("schedule", {bad, inf})) return;
  }
  Random random(bench.seed());
  for (int round = 0; round < 2; ++round) {
    Trainer trainer(bench, static_cast<int>(1 + random.below(5)), static_cast<size_t>(1 + random.below(300)), bench.seed());
    for (int i = 0; i < 25; ++i)
      if (!trainer.step("hidden", {random.below(5) == 0 ? static_cast<int>(random.below(bench.size())) : -1, random.below(2) ? -inf : nan})) return;
  }
}

}  // namespace manyranks
