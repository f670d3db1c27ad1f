// What a set of samples says, without assuming a bell curve: step times have a long right tail.
#pragma once

#include <utility>
#include <vector>

namespace manyranks {

double median(std::vector<double> samples);
// q from 0 to 1, linear between neighbouring samples (as numpy does). Throws std::invalid_argument if there are none.
double quantile(std::vector<double> samples, double q);
double spread(std::vector<double> samples);  // interquartile range

// An interval that holds the true median in 95 of 100 repetitions, whatever the distribution: two order statistics,
// picked from the binomial distribution. Fewer than six samples cannot promise 95%: then the smallest and the largest.
std::pair<double, double> median_interval(std::vector<double> samples);

}  // namespace manyranks
