// Who am I: rank and world size, read from what the launcher left in the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace manyranks {

struct Identity {
  enum class Source {
    alone,      // no launcher: one rank
    mpi,        // mpirun or srun --mpi: MPI_Init tells the rest
    variables,  // RANK, WORLD_SIZE, ...: torchrun, or typed by hand; rendezvous by TCPStore
  };
  Source source = Source::alone;
  int rank = 0;
  int world_size = 1;                  // 0: not known before MPI_Init (srun --mpi=pmix gives only the rank)
  std::optional<int> local_rank;       // only if the launcher says so
  std::optional<int> local_world_size;
  std::string master_address;          // Source::variables only
  int master_port = 0;
  std::string launcher = "alone";      // for people: "Open MPI (OMPI_COMM_WORLD_*)"
};

using Variables = std::function<std::optional<std::string>(const std::string& name)>;

// Pure: all that it knows comes through `variables`. Throws a usage error (exit 64) when variables contradict each
// other, are incomplete or are not numbers: a wrong world is worse than none.
Identity identify(const Variables& variables);

std::optional<std::string> environment_variable(const std::string& name);

}  // namespace manyranks
