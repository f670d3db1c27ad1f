// The cost model: what one message and one addition cost on this machine, and from that what every algorithm costs.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
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

// A kind of step, all ranks at once: how long it takes with a core for each rank, and, where ranks must share cores, how long with
// `crowd` ranks on the busiest core: that is the one everybody waits for. Beyond, the time is taken to grow in proportion.
struct Step {
  explicit Step(std::vector<Point> points) : alone(std::move(points)) {}
  PiecewiseLine alone;
  std::optional<PiecewiseLine> crowded;
  double crowd = 1;
  double operator()(double bytes, double ranks_on_core) const;
};

// The two kinds of steps that algorithms consist of: pass(n) sends n bytes and receives as many; add(n) also adds them to one's own.
struct CostModel {
  Step pass, add;
  double cores = 1;

  double ring(double n, int p) const;                // p-1 steps of each kind, of n/p
  double recursive_doubling(double n, int p) const;  // log2 p adding steps of n (+ folding)
  double rabenseifner(double n, int p) const;        // adding steps of n/2, n/4, ..., and passing ones back

 private:
  double load(int ranks) const { return std::ceil(ranks / cores); }  // ranks on the busiest core
};

// Several nodes: `link` is a step in which bytes go from node to node while as many come back, by the sum of what the ranks of a node send:
// they share the link.
struct TwoLevelModel {
  CostModel inside;
  PiecewiseLine link;
  int nodes = 2, per_node = 1;

  double ring(double n) const;       // 2(p-1) steps of n/p; only one rank of a node sends to another node, but every step waits for it
  double two_level(double n) const;  // ring reduce-scatter inside, ring over the nodes on n/g by all g ranks at once, ring all-gather inside
};

}  // namespace manyranks
