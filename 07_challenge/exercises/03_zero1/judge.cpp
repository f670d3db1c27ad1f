#include "03_zero1.hpp"

#include "bench.hpp"

namespace manyranks {

namespace {
// Pulls every parameter towards a number of this rank and step: easy to run serially for all ranks.
class Pull final : public Backward {
 public:
  Pull(size_t n, int rank, uint64_t seed) : seed_(seed * 100 + static_cast<uint64_t>(rank)), gradients_(n) {}
  std::span<float> gradients(int step, std::span<const float> parameters) override {
    Random random(seed_ + static_cast<uint64_t>(step) * 31);
    for (size_t i = 0; i < gradients_.size(); ++i) gradients_[i] = parameters[i] - random.uniform();
    return gradients_;
  }

 private:
  uint64_t seed_;
  std::vector<float> gradients_;
};

bool try_training(Bench& bench, decltype(train_zero1)* train, const char* check, size_t n, int steps, uint64_t seed) {
  const int p = bench.size();
  const float rate = 0.1f, momentum = 0.9f;
  std::vector<float> start = whole_numbers(n, seed), want = start, velocity(n), got = start;
  std::vector<Pull> everybody;
  for (int r = 0; r < p; ++r) everybody.emplace_back(n, r, seed);
  for (int step = 0; step < steps; ++step) {
    std::vector<float> sum(n);
    for (auto& pull : everybody) {
      const auto g = pull.gradients(step, want);
      for (size_t i = 0; i < n; ++i) sum[i] += g[i];
    }
    for (size_t i = 0; i < n; ++i) {
      velocity[i] = momentum * velocity[i] + sum[i] / static_cast<float>(p);
      want[i] -= rate * velocity[i];
    }
  }
  Pull mine(n, bench.rank(), seed);
  bench.learner(check, [&] { train(bench.ranks(), got, mine, steps, rate, momentum); });
  if (!bench.require(check, first_difference(got, want, 1e-4f) < 0, text("after %d steps: ", steps) + difference("parameters", got, want, 1e-4f))) return false;
  const Counts counts = bench.counts();
  bench.require("calls", counts.collectives <= 2 * steps && counts.messages == 0, text("%ld collectives and %ld messages in %d steps: two collectives per step are enough", static_cast<long>(counts.collectives), static_cast<long>(counts.messages), steps));
  const auto most = static_cast<int64_t>(steps * 2 * 4 * n * static_cast<size_t>(p - 1) / static_cast<size_t>(p));  // 2 P (N-1)/N elements per step
  bench.require("bytes", counts.bytes_sent <= most, text("%ld bytes sent, plain data parallelism sends %ld", static_cast<long>(counts.bytes_sent), static_cast<long>(most)));
  const auto heap = static_cast<int64_t>(2 * 4 * n / static_cast<size_t>(p) + 256);
  bench.require("memory", bench.peak_bytes() <= heap, text("%ld bytes from the heap for %zu parameters; two arrays of one shard have %zu", static_cast<long>(bench.peak_bytes()), n, 2 * 4 * n / static_cast<size_t>(p)));
  return true;
}
}  // namespace

void judge_03_zero1(Bench& bench) {
  auto* train = bench.entry<decltype(train_zero1)>("train_zero1");
  if (!try_training(bench, train, "result", 1200, 5, 1)) return;
  Random random(bench.seed());
  for (int i = 0; i < 3; ++i)
    if (!try_training(bench, train, "hidden", static_cast<size_t>((i == 0 ? 1 : 100 + random.below(400)) * bench.size()), i == 1 ? 0 : static_cast<int>(1 + random.below(8)), bench.seed() + static_cast<uint64_t>(i))) return;
}

}  // namespace manyranks
