// Where to cut a model: consecutive units into parts whose slowest is as fast as can be. A pipeline runs at the pace of its slowest stage.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace manyranks::pipeline {

struct Partition {
  std::vector<size_t> units;     // per part, at least 1
  std::vector<double> costs;     // per part
  double balance() const;        // mean cost over largest cost: 1 is perfect
};

// The best cut for these costs (dynamic programming, exact). Throws a usage error if there are fewer units than parts.
Partition partition_units(const std::vector<double>& costs, size_t parts);

// "stage 0: units 0-3, 12.1 ms ######## | ..." one line per part, and the balance.
std::string describe(const Partition& partition, const std::string& unit);

}  // namespace manyranks::pipeline
