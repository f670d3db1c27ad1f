// Ranks in a grid: one communicator along each axis. The last axis has neighbouring ranks: put there what talks most.
//
//   Mesh mesh(world, {{"dp", 2}, {"tp", 2}});     // rank 3 is dp 1, tp 1
//   mesh["tp"].all_reduce(...);                   // ranks 2 and 3
//   mesh["dp"].all_reduce(...);                   // ranks 1 and 3
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace manyranks {

class Communicator;

class Mesh {
 public:
  struct Axis {
    std::string name;
    int size;
  };
  // Exit 64 with the valid choices if the sizes do not multiply to the world's. Collective.
  Mesh(Communicator& world, std::vector<Axis> axes);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  Communicator& operator[](const std::string& axis) const;  // the ranks that differ from me in this coordinate only

  const std::vector<Axis>& axes() const { return axes_; }
  std::string text() const;  // "dp 2 x tp 2"

 private:
  std::vector<Axis> axes_;
  std::vector<std::unique_ptr<Communicator>> along_;
};

}  // namespace manyranks
