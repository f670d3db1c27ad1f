// Who takes part in bench_collectives: our Communicator, our algorithms one by one, MPI with each forced algorithm.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace manyranks {

enum class Collective { all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, all_to_all, send_recv };
const std::vector<std::pair<std::string, Collective>>& collectives();
std::string name_of(Collective collective);

class Process;

class Contender {
 public:
  virtual ~Contender() = default;
  virtual std::string name() const = 0;
  virtual std::string transport() const = 0;
  virtual bool can(Collective collective, bool in_place) const = 0;
  // Elements as in nccl-tests: see shapes(). Root is 0. send_recv: to the next rank, from the previous one.
  virtual void run(Collective collective, torch::Tensor out, torch::Tensor in) = 0;
  // Wants its tensors in memory that peers can read.
  virtual bool registered() const { return false; }
};

// Elements in and out for `count` elements of the whole array (nccl-tests' "size" is the whole array's bytes).
struct Shapes {
  int64_t in, out;
};
Shapes shapes(Collective collective, int64_t count, int ranks);
// Bus bandwidth / algorithm bandwidth.
double bus_factor(Collective collective, int ranks);

std::vector<std::unique_ptr<Contender>> our_contenders(Communicator& world);
std::vector<std::unique_ptr<Contender>> mpi_contenders();  // after MPI_Init; empty without MPI
std::vector<std::unique_ptr<Contender>> algorithm_contenders(const Process& process);  // ring, ... over MPI messages

}  // namespace manyranks
