// MPI's own collectives: as the library picks them, and with each of Open MPI's tuned all-reduce algorithms forced.
#include <mpi.h>

#include <cstdlib>

#include "contenders.hpp"
#include "launch/mpi_check.hpp"

namespace manyranks {
namespace {

// Sets an Open MPI parameter at run time through MPI's tool interface. coll/tuned reads the algorithm when a communicator is made.
bool set_parameter(const char* name, int value) {
  int index = 0, count = 0;
  MPI_T_cvar_handle handle;
  if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS || MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) return false;
  const bool written = MPI_T_cvar_write(handle, &value) == MPI_SUCCESS;
  MPI_T_cvar_handle_free(&handle);
  return written;
}

class Mpi : public Contender {
 public:
  Mpi(std::string name, MPI_Comm comm, bool only_all_reduce) : name_(std::move(name)), comm_(comm), only_all_reduce_(only_all_reduce) {}
  ~Mpi() override { MPI_Comm_free(&comm_); }
  std::string name() const override { return name_; }
  std::string transport() const override { return "MPI"; }
  // MPI_IN_PLACE of reduce-scatter and send-receive does not mean what nccl-tests means by in place: left out.
  bool can(Collective collective, bool in_place) const override {
    if (in_place && (collective == Collective::reduce_scatter || collective == Collective::send_recv)) return false;
    return !only_all_reduce_ || collective == Collective::all_reduce;
  }

  void run(Collective collective, torch::Tensor out, torch::Tensor in) override {
    int rank = 0, size = 0;
    CHECK_MPI(MPI_Comm_rank(comm_, &rank));
    CHECK_MPI(MPI_Comm_size(comm_, &size));
    const bool in_place = overlap(out, in);
    float* to = out.defined() ? out.data_ptr<float>() : nullptr;
    const float* from = in.defined() ? in.data_ptr<float>() : nullptr;
    const void* send = in_place ? MPI_IN_PLACE : static_cast<const void*>(from);
    const int n_in = static_cast<int>(in.defined() ? in.numel() : 0), n_out = static_cast<int>(out.defined() ? out.numel() : 0);
    switch (collective) {
      case Collective::all_reduce: CHECK_MPI(MPI_Allreduce(send, to, n_out, MPI_FLOAT, MPI_SUM, comm_)); break;
      case Collective::all_gather: CHECK_MPI(MPI_Allgather(send, n_in, MPI_FLOAT, to, n_in, MPI_FLOAT, comm_)); break;
      case Collective::reduce_scatter: CHECK_MPI(MPI_Reduce_scatter_block(from, to, n_out, MPI_FLOAT, MPI_SUM, comm_)); break;
      case Collective::broadcast: CHECK_MPI(MPI_Bcast(to, n_out, MPI_FLOAT, 0, comm_)); break;
      case Collective::reduce: CHECK_MPI(MPI_Reduce(rank == 0 ? send : from, to, n_in, MPI_FLOAT, MPI_SUM, 0, comm_)); break;
      case Collective::gather: CHECK_MPI(MPI_Gather(rank == 0 ? send : from, n_in, MPI_FLOAT, to, n_in, MPI_FLOAT, 0, comm_)); break;
      case Collective::scatter: CHECK_MPI(MPI_Scatter(from, n_out, MPI_FLOAT, rank == 0 && in_place ? MPI_IN_PLACE : to, n_out, MPI_FLOAT, 0, comm_)); break;
      case Collective::all_to_all: CHECK_MPI(MPI_Alltoall(send, n_in / size, MPI_FLOAT, to, n_in / size, MPI_FLOAT, comm_)); break;
      case Collective::send_recv:
        CHECK_MPI(MPI_Sendrecv(from, n_in, MPI_FLOAT, (rank + 1) % size, 0, to, n_out, MPI_FLOAT, (rank + size - 1) % size, 0, comm_, MPI_STATUS_IGNORE));
    }
  }

 private:
  static bool overlap(const torch::Tensor& a, const torch::Tensor& b) { return a.defined() && b.defined() && a.storage().data() == b.storage().data(); }
  std::string name_;
  MPI_Comm comm_;
  bool only_all_reduce_;
};

MPI_Comm duplicate() {
  MPI_Comm comm = MPI_COMM_NULL;
  CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  return comm;
}

}  // namespace

// Read once, in MPI_Init. With no algorithm forced, the library's own choice stays what it was.
void allow_forced_algorithms() { setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 0); }

std::vector<std::unique_ptr<Contender>> mpi_contenders() {
  std::vector<std::unique_ptr<Contender>> list;
  list.push_back(std::make_unique<Mpi>("MPI", duplicate(), false));
  int provided = 0;
  if (MPI_T_init_thread(MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) return list;
  // Open MPI 4 coll/tuned: 1 linear, 2 non-overlapping, 3 recursive doubling, 4 ring, 5 segmented ring, 6 Rabenseifner.
  const std::pair<int, const char*> algorithms[] = {{3, "MPI tuned: recursive doubling"}, {4, "MPI tuned: ring"}, {5, "MPI tuned: segmented ring"}, {6, "MPI tuned: Rabenseifner"}};
  for (const auto& [number, name] : algorithms) {
    if (!set_parameter("coll_tuned_allreduce_algorithm", number)) break;  // another MPI
    list.push_back(std::make_unique<Mpi>(name, duplicate(), true));
  }
  set_parameter("coll_tuned_allreduce_algorithm", 0);
  MPI_T_finalize();
  return list;
}

}  // namespace manyranks
