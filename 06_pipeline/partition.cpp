#include "partition.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "launch/errors.hpp"

namespace manyranks::pipeline {

double Partition::balance() const {
  const double largest = *std::max_element(costs.begin(), costs.end());
  return largest > 0 ? std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(costs.size()) / largest : 1;
}

Partition partition_units(const std::vector<double>& costs, size_t parts) {
  const size_t n = costs.size();
  if (parts == 0 || n < parts) throw usage_error("partition", fmt::format("{} units cannot be cut into {} parts", n, parts), "a deeper model, or fewer stages");
  std::vector<double> sum(n + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), sum.begin() + 1);
  // best[k][i]: the largest part when the first i units make k parts; from[k][i]: where its last part begins.
  std::vector<std::vector<double>> best(parts + 1, std::vector<double>(n + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<size_t>> from(parts + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t k = 1; k <= parts; ++k)
    for (size_t i = k; i <= n; ++i)
      for (size_t begin = k - 1; begin < i; ++begin) {
        const double largest = std::max(best[k - 1][begin], sum[i] - sum[begin]);
        if (largest < best[k][i]) best[k][i] = largest, from[k][i] = begin;
      }
  Partition partition{std::vector<size_t>(parts), std::vector<double>(parts)};
  for (size_t k = parts, end = n; k > 0; end = from[k--][end]) {
    partition.units[k - 1] = end - from[k][end];
    partition.costs[k - 1] = sum[end] - sum[from[k][end]];
  }
  return partition;
}

std::string describe(const Partition& partition, const std::string& unit) {
  const double largest = *std::max_element(partition.costs.begin(), partition.costs.end());
  std::string text;
  size_t first = 0;
  for (size_t i = 0; i < partition.units.size(); ++i) {
    const auto bar = static_cast<size_t>(largest > 0 ? 30 * partition.costs[i] / largest : 0);
    text += fmt::format("  stage {}: units {} to {}, {:.2f} {} {}\n", i, first, first + partition.units[i] - 1, partition.costs[i], unit, std::string(bar, '#'));
    first += partition.units[i];
  }
  return text + fmt::format("  balance (mean over slowest): {:.2f}\n", partition.balance());
}

}  // namespace manyranks::pipeline
