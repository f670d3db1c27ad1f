#include "01_exact_resume.hpp"

#include <memory>

#include "bench.hpp"

namespace manyranks {

namespace {
struct Plan {
  int64_t samples, batch;
  int before, after;  // batches until the checkpoint, and from there on
  uint64_t seed;
};

struct Outcome {
  bool order = true, crops = true;
  std::string seen;
};

// The batches that one rank must see, without any break, by the rules of 01_exact_resume.hpp. Not by the learner's loader: one that gives nothing agrees
// with itself.
class Wanted {
 public:
  Wanted(const Plan& plan, int rank, int world_size) : plan_(plan), rank_(rank), world_size_(world_size), random_(plan.seed * 1000 + static_cast<uint64_t>(rank)) {}

  std::vector<Sample> next() {
    if (left_.empty()) start_epoch();
    std::vector<Sample> batch;
    while (!left_.empty() && static_cast<int64_t>(batch.size()) < plan_.batch) {
      batch.push_back({left_.back(), random_.next()});
      left_.pop_back();
    }
    return batch;
  }

 private:
  void start_epoch() {
    const auto order = shuffled(plan_.samples, plan_.seed + 7919 * epoch_++);
    for (int64_t i = rank_; i < plan_.samples; i += world_size_) left_.push_back(order[static_cast<size_t>(i)]);
    std::reverse(left_.begin(), left_.end());
  }

  Plan plan_;
  int rank_, world_size_;
  Random random_;
  uint64_t epoch_ = 0;
  std::vector<int64_t> left_;  // of this epoch, the next one last
};

Outcome resume(Bench& bench, decltype(make_loader)* make, const char* check, const Plan& plan) {
  Outcome outcome;
  bench.learner(check, [&] {
    const auto loader = [&] { return std::unique_ptr<Loader>(make(plan.samples, plan.batch, bench.rank(), bench.size(), plan.seed)); };
    Wanted whole(plan, bench.rank(), bench.size());
    auto killed = loader(), resumed = loader();
    std::vector<Sample> got;
    for (int i = 0; i < plan.before; ++i) whole.next(), killed->next(got);
    const Checkpoint checkpoint = killed->save();
    killed.reset();
    resumed->next(got);  // an object that has been in use
    resumed->restore(checkpoint);
    for (int i = 0; i < plan.after && outcome.order; ++i) {
      const auto want = whole.next();
      resumed->next(got);
      outcome.order = want.size() == got.size() && std::equal(want.begin(), want.end(), got.begin(), [](auto& a, auto& b) { return a.index == b.index; });
      outcome.crops = outcome.crops && want == got;
      if (outcome.seen.empty() && !outcome.crops)
        outcome.seen = text("%ld samples, batch %ld, saved after %d batches: batch %d after that begins with sample %ld (crop %016lx), without the break with %ld (crop %016lx)",
                            static_cast<long>(plan.samples), static_cast<long>(plan.batch), plan.before, i + 1, got.empty() ? -1L : static_cast<long>(got[0].index),
                            got.empty() ? 0UL : got[0].crop, want.empty() ? -1L : static_cast<long>(want[0].index), want.empty() ? 0UL : want[0].crop);
    }
  });
  return outcome;
}
}  // namespace

void judge_01_exact_resume(Bench& bench) {
  auto* make = bench.entry<decltype(make_loader)>("make_loader");
  // In the first epoch, then in the third: who forgets the order of an epoch passes the one and not the other.
  const Outcome first = resume(bench, make, "order", {103, 4, 3, 40, 5});
  if (!bench.require("order", first.order, first.seen)) return;
  const int batches = static_cast<int>((103 / bench.size() + 3) / 4);  // per epoch, about
  const Outcome later = resume(bench, make, "order", {103, 4, 2 * batches + 3, 40, 5});
  if (!bench.require("order", later.order, later.seen, "third_epoch")) return;
  if (!bench.require("augmentation", first.crops && later.crops, first.crops ? later.seen : first.seen)) return;
  Random random(bench.seed());
  for (int i = 0; i < 7; ++i) {
    // The first is saved exactly between two epochs.
    const Plan plan = i == 0 ? Plan{5 * 4 * bench.size(), 4, 5, 60, 9} : Plan{1 + random.below(200) + 4 * bench.size(), 1 + random.below(9), static_cast<int>(random.below(60)), 60, random.next() % 1000};
    const Outcome outcome = resume(bench, make, "hidden", plan);
    if (!bench.require("hidden", outcome.order && outcome.crops, outcome.seen)) return;
  }
}

}  // namespace manyranks
