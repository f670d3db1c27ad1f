// MPI for the lessons whose subject is MPI itself: the job's own under mpirun, a world of one rank when started alone.
#pragma once

#include "launch/mpi_check.hpp"  // CHECK_MPI, mpi.h
#include "launch/process.hpp"    // Process

namespace manyranks {

class RawMpi {
 public:
  explicit RawMpi(const Process& process) : started_here_(!process.has_mpi()) {
    if (started_here_) {
      if (process.world_size() > 1)
        throw usage_error("MPI", "this lesson speaks MPI, and its ranks were started by hand", "mpirun -np " + std::to_string(process.world_size()));
      CHECK_MPI(MPI_Init(nullptr, nullptr));
    }
    // A communicator of our own: its messages can never match a receive that somebody else posted on MPI_COMM_WORLD.
    CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &world));
    CHECK_MPI(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN));
    CHECK_MPI(MPI_Comm_rank(world, &rank));
    CHECK_MPI(MPI_Comm_size(world, &size));
  }
  ~RawMpi() {
    if (std::uncaught_exceptions() > 0) return;  // the job ends at once: waiting for peers here would hang
    MPI_Comm_free(&world);
    if (started_here_) MPI_Finalize();
  }
  RawMpi(const RawMpi&) = delete;
  RawMpi& operator=(const RawMpi&) = delete;

  MPI_Comm world = MPI_COMM_NULL;
  int rank = 0, size = 1;

  // Neighbours on the ring; with one rank both are the rank itself.
  int right() const { return (rank + 1) % size; }
  int left() const { return (rank + size - 1) % size; }

 private:
  bool started_here_;
};

}  // namespace manyranks
