#include "measure/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace manyranks {
namespace {

double quantile_of_sorted(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) throw std::invalid_argument("statistics of no samples");
  if (!(q >= 0 && q <= 1)) throw std::invalid_argument("a quantile lies between 0 and 1");
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const auto above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

double median(std::vector<double> samples) { return quantile(std::move(samples), 0.5); }

double quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  return quantile_of_sorted(samples, q);
}

double spread(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return quantile_of_sorted(samples, 0.75) - quantile_of_sorted(samples, 0.25);
}

std::pair<double, double> median_interval(std::vector<double> samples) {
  if (samples.empty()) throw std::invalid_argument("statistics of no samples");
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  // Each sample falls below the true median with probability 1/2. [x_(k), x_(n+1-k)] misses it with probability
  // 2 P(Binomial(n, 1/2) < k): take the largest k that keeps this within 5%.
  const double log_half_n = static_cast<double>(n) * std::log(0.5);
  double tail = 0;
  size_t k = 0;
  while (k < n / 2) {
    tail += std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(static_cast<double>(n - k) + 1.0) + log_half_n);
    if (2 * tail > 0.05) break;
    ++k;
  }
  k = std::max<size_t>(k, 1);
  return {samples[k - 1], samples[n - k]};
}

}  // namespace manyranks
