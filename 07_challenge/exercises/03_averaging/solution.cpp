// Exercise: fix the averaging. Lesson: 03_data_parallel/01_naive.cpp, and "The last batch" in that chapter's README
//
// The version below is in many training loops: sum over ranks, divide by their number. It is right as long as all ranks have equally many
// samples. At the end of an epoch they have not: with 8, 8, 8 and 1 samples that one counts eight times as much as any other. Worse, a rank may
// have none at all: its mean is 0/0, and one NaN is on all ranks after the sum.
//
// Repair it, with a single collective per call: latency is what small gradients cost.
#include "03_averaging.hpp"  // Ranks

using namespace manyranks;

void manyranks::average_gradients(Ranks& ranks, std::span<float> gradients, int64_t samples) {
  // <<< todo
  // The mean over all samples is the sum of sums over the sum of counts. The counts have to travel too, with the same message.
  // <<< until then
  // (void)samples;
  // ranks.all_reduce(gradients);
  // for (float& g : gradients) g /= static_cast<float>(ranks.size());
  // <<< solution
  std::vector<float> sums(gradients.size() + 1, 0.0f);  // a rank without samples brings zeros, not its NaN; but it must come
  if (samples > 0)
    for (size_t i = 0; i < gradients.size(); ++i) sums[i] = gradients[i] * static_cast<float>(samples);
  sums.back() = static_cast<float>(samples);
  ranks.all_reduce(sums);
  const float all = std::max(sums.back(), 1.0f);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = sums[i] / all;
  // >>>
}
