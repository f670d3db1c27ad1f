#include "launch/identity.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

constexpr const char* operation = "reading launch variables";

std::optional<int> number(const Variables& variables, const std::string& name, int least, int most) {
  const auto text = variables(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least || value > most)
    throw usage_error(operation, fmt::format("{}='{}' is not a number from {} to {}", name, *text, least, most),
                      fmt::format("unset {}, or let the launcher set it", name));
  return value;
}

constexpr int most_ranks = 1 << 20;

struct MpiLauncher {
  const char *name, *rank, *size, *local_rank, *local_size;
};
// Each launcher and the variables that give it away. PMIx (srun --mpi=pmix) gives no size before MPI_Init.
constexpr MpiLauncher mpi_launchers[] = {
    {"Open MPI (OMPI_COMM_WORLD_*)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH (PMI_*)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"PMIx (PMIX_RANK)", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
};

std::optional<Identity> from_mpi(const Variables& variables) {
  for (const auto& launcher : mpi_launchers) {
    const auto rank = number(variables, launcher.rank, 0, most_ranks);
    if (!rank) continue;
    Identity id;
    id.source = Identity::Source::mpi;
    id.launcher = launcher.name;
    id.rank = *rank;
    id.world_size = number(variables, launcher.size, 1, most_ranks).value_or(0);
    id.local_rank = number(variables, launcher.local_rank, 0, most_ranks);
    if (*launcher.local_size) id.local_world_size = number(variables, launcher.local_size, 1, most_ranks);
    return id;
  }
  return std::nullopt;
}

std::optional<Identity> from_rank_variables(const Variables& variables) {
  const auto rank = number(variables, "RANK", 0, most_ranks);
  const auto size = number(variables, "WORLD_SIZE", 1, most_ranks);
  if (!rank && !size) return std::nullopt;
  if (!rank || !size)
    throw usage_error(operation, fmt::format("{} is set, but {} is not", rank ? "RANK" : "WORLD_SIZE", rank ? "WORLD_SIZE" : "RANK"),
                      "set both (as torchrun does), or unset both");
  if (*rank >= *size) throw usage_error(operation, fmt::format("RANK={} must be less than WORLD_SIZE={}", *rank, *size));
  Identity id;
  id.source = Identity::Source::variables;
  id.rank = *rank;
  id.world_size = *size;
  id.local_rank = number(variables, "LOCAL_RANK", 0, most_ranks);
  id.local_world_size = number(variables, "LOCAL_WORLD_SIZE", 1, most_ranks);
  if (id.local_rank && id.local_world_size && *id.local_rank >= *id.local_world_size)
    throw usage_error(operation, fmt::format("LOCAL_RANK={} must be less than LOCAL_WORLD_SIZE={}", *id.local_rank, *id.local_world_size));
  if (id.local_world_size && *id.local_world_size > id.world_size)
    throw usage_error(operation, fmt::format("LOCAL_WORLD_SIZE={} is more than WORLD_SIZE={}", *id.local_world_size, id.world_size));
  id.launcher = variables("TORCHELASTIC_RUN_ID") ? "torchrun (RANK, WORLD_SIZE, ...)" : "by hand (RANK, WORLD_SIZE, ...)";
  return id;
}

void read_master(Identity& id, const Variables& variables) {
  const auto address = variables("MASTER_ADDR");
  const auto port = number(variables, "MASTER_PORT", 1, 65535);
  if (id.world_size > 1 && (!address || address->empty() || !port))
    throw usage_error(operation, fmt::format("WORLD_SIZE={}, but {} is not set", id.world_size, port ? "MASTER_ADDR" : "MASTER_PORT"),
                      "export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500, the same on every rank");
  id.master_address = address.value_or("");
  id.master_port = port.value_or(0);
}

}  // namespace

Identity identify(const Variables& variables) {
  const auto mpi = from_mpi(variables);
  if (mpi && mpi->world_size && mpi->rank >= mpi->world_size)
    throw usage_error(operation, fmt::format("{}: rank {} must be less than the world size {}", mpi->launcher, mpi->rank, mpi->world_size));
  auto by_rank = from_rank_variables(variables);
  if (mpi && by_rank) {
    // A stale `export RANK=0` under mpirun would make four rank zeros: refuse rather than guess.
    if (mpi->rank != by_rank->rank || (mpi->world_size && mpi->world_size != by_rank->world_size))
      throw usage_error(operation,
                        fmt::format("{} says rank {} of {}, but RANK={} and WORLD_SIZE={}", mpi->launcher, mpi->rank,
                                    mpi->world_size, by_rank->rank, by_rank->world_size),
                        "unset RANK WORLD_SIZE LOCAL_RANK (left from another run?)");
    return *mpi;
  }
  if (mpi) return *mpi;
  if (by_rank) {
    read_master(*by_rank, variables);
    return *by_rank;
  }
  if (variables("LOCAL_RANK"))
    throw usage_error(operation, "LOCAL_RANK is set, but RANK and WORLD_SIZE are not", "set all three, or unset LOCAL_RANK");
  // srun without PMIx starts N programs that each believe to be alone.
  if (const auto tasks = number(variables, "SLURM_STEP_NUM_TASKS", 1, most_ranks); tasks.value_or(1) > 1)
    throw usage_error(operation, fmt::format("srun started {} tasks without MPI", *tasks),
                      "srun --mpi=pmix, or export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS and MASTER_ADDR, MASTER_PORT");
  return Identity{};
}

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (!value) return std::nullopt;
  return std::string(value);
}

}  // namespace manyranks
