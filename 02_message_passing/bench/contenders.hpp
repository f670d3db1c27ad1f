// Who takes part in bench_collectives: our Communicator, our algorithms one by one, MPI with each forced algorithm, Gloo.
#pragma once

#include <memory>
#include <optional>
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
  // Seconds of `iterations` calls one after another. Who runs in another process measures there.
  virtual double seconds(Collective collective, torch::Tensor out, torch::Tensor in, int64_t iterations);
  // Elements that `out` got wrong when called on the pattern of bench_collectives; nothing: compare `out` itself.
  virtual std::optional<int64_t> wrong(Collective, int64_t) { return std::nullopt; }
  // Wants its tensors in memory that peers can read.
  virtual bool registered() const { return false; }
};

constexpr const char* copy_bound_name = "memory copies (bound)";

// Elements in and out for `count` elements of the whole array (nccl-tests' "size" is the whole array's bytes).
struct Shapes {
  int64_t in, out;
};
Shapes shapes(Collective collective, int64_t count, int ranks);
// Bus bandwidth / algorithm bandwidth.
double bus_factor(Collective collective, int ranks);

std::vector<std::unique_ptr<Contender>> our_contenders(Communicator& world);
// No all-reduce can move less: every element of every rank is read once, every element of every result is written once. With p ranks
// and S bytes that is pS read and pS written, and no rank can do better than its share of both: read S and write S, all ranks at once.
// That is one memcpy of S bytes per rank; its time is the bound.
std::vector<std::unique_ptr<Contender>> copy_bound();
void allow_forced_algorithms();                            // before MPI_Init: lets mpi_contenders() choose Open MPI's algorithms
std::vector<std::unique_ptr<Contender>> mpi_contenders();  // after MPI_Init; empty without MPI
inline const std::string pytorch_contender_name = "PyTorch Gloo";
std::vector<std::unique_ptr<Contender>> pytorch_contenders(Process& process);  // torch.distributed over Gloo, in a Python of its own
std::vector<std::unique_ptr<Contender>> algorithm_contenders(const Process& process);  // ring, ... over MPI messages
std::vector<std::unique_ptr<Contender>> gloo_contenders(Process& process);               // Gloo's own all-reduce, by TCP

}  // namespace manyranks
