// The cost model: what one message and one addition cost on this machine, and from that what every algorithm costs.
#pragma once

#include <cmath>
#include <string>
#include <vector>

namespace manyranks {

struct Point {
  double bytes, seconds;
};

// seconds = a + bytes * b in each of a few ranges of size: a message that fits the eager buffer, one that fits the cache and
// one that does not are different things.
class PiecewiseLine {
 public:
  explicit PiecewiseLine(std::vector<Point> points);
  double operator()(double bytes) const;
  std::string text() const;  // "up to 4.0 KiB: 0.9 us + 0.30 ns/B; ..."

 private:
  struct Piece {
    double up_to, a, b;
  };
  std::vector<Piece> pieces_;
};

// The two kinds of steps that algorithms consist of, all ranks at once: pass(n) sends n bytes and receives as many; add(n) also adds
// them to one's own. contention: how much longer both take when p ranks share fewer cores: 1 + slope * (p/cores - 1).
struct CostModel {
  PiecewiseLine pass, add;
  double cores = 1, contention_slope = 0;
  double contention(int ranks) const { return 1 + contention_slope * std::max(0.0, ranks / cores - 1); }

  double ring(double n, int p) const;                // p-1 steps of each kind, of n/p
  double recursive_doubling(double n, int p) const;  // log2 p adding steps of n (+ folding)
  double rabenseifner(double n, int p) const;        // adding steps of n/2, n/4, ..., and passing ones back
};

}  // namespace manyranks
