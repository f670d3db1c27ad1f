// Every way to be launched, and every way to be launched wrongly.
#include "launch/identity.hpp"

#include <gtest/gtest.h>

#include <map>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

using Environment = std::map<std::string, std::string>;
using Source = Identity::Source;

Identity from(const Environment& environment) {
  return identify([&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

// The message of the usage error that `environment` must cause.
std::string refusal(const Environment& environment) {
  try {
    from(environment);
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::usage);
    return error.cause;
  }
  ADD_FAILURE() << "accepted";
  return "";
}

#define EXPECT_REFUSED(environment, words) EXPECT_NE(refusal(environment).find(words), std::string::npos) << refusal(environment)

const Environment open_mpi{{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Environment torchrun{{"RANK", "1"},       {"WORLD_SIZE", "4"},           {"LOCAL_RANK", "1"},    {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "x"}};

Environment with(Environment base, const Environment& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}
Environment without(Environment base, const std::string& name) {
  base.erase(name);
  return base;
}

TEST(Identity, AloneWithoutLauncher) {
  const auto id = from({});
  EXPECT_EQ(id.source, Source::alone);
  EXPECT_EQ(id.rank, 0);
  EXPECT_EQ(id.world_size, 1);
  EXPECT_FALSE(id.local_rank);
}

TEST(Identity, MasterVariablesAloneAreHarmless) { EXPECT_EQ(from({{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "1"}}).source, Source::alone); }

TEST(Identity, OpenMpi) {
  const auto id = from(open_mpi);
  EXPECT_EQ(id.source, Source::mpi);
  EXPECT_EQ(id.rank, 3);
  EXPECT_EQ(id.world_size, 4);
  EXPECT_EQ(id.local_rank, 1);
  EXPECT_EQ(id.local_world_size, 2);
  EXPECT_NE(id.launcher.find("Open MPI"), std::string::npos);
}

TEST(Identity, Mpich) {
  const auto id = from({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}});
  EXPECT_EQ(id.source, Source::mpi);
  EXPECT_EQ(id.rank, 2);
  EXPECT_EQ(id.world_size, 3);
  EXPECT_EQ(id.local_rank, 2);
}

TEST(Identity, PmixDoesNotKnowTheSizeYet) {
  const auto id = from({{"PMIX_RANK", "5"}});
  EXPECT_EQ(id.source, Source::mpi);
  EXPECT_EQ(id.rank, 5);
  EXPECT_EQ(id.world_size, 0);
}

TEST(Identity, PmixUnderSlurm) {
  const auto id = from({{"PMIX_RANK", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "1"}});
  EXPECT_EQ(id.source, Source::mpi);
  EXPECT_EQ(id.world_size, 2);
  EXPECT_EQ(id.local_rank, 1);
}

TEST(Identity, OpenMpiSetsPmixTooAndWins) { EXPECT_NE(from(with(open_mpi, {{"PMIX_RANK", "3"}})).launcher.find("Open MPI"), std::string::npos); }

TEST(Identity, Torchrun) {
  const auto id = from(torchrun);
  EXPECT_EQ(id.source, Source::variables);
  EXPECT_EQ(id.rank, 1);
  EXPECT_EQ(id.world_size, 4);
  EXPECT_EQ(id.local_rank, 1);
  EXPECT_EQ(id.master_address, "n0");
  EXPECT_EQ(id.master_port, 29500);
  EXPECT_NE(id.launcher.find("torchrun"), std::string::npos);
}

TEST(Identity, ByHand) {
  const auto id = from({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(id.source, Source::variables);
  EXPECT_NE(id.launcher.find("by hand"), std::string::npos);
  EXPECT_FALSE(id.local_rank);
}

TEST(Identity, OneRankByHandNeedsNoMaster) { EXPECT_EQ(from({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1); }

TEST(Identity, AgreeingVariablesUnderMpirunAreFine) {
  const auto id = from(with(open_mpi, {{"RANK", "3"}, {"WORLD_SIZE", "4"}}));
  EXPECT_EQ(id.source, Source::mpi);
}

TEST(Identity, StaleRankUnderMpirun) {
  EXPECT_REFUSED(with(open_mpi, {{"RANK", "0"}, {"WORLD_SIZE", "4"}}), "but RANK=0");
  EXPECT_REFUSED(with(open_mpi, {{"RANK", "3"}, {"WORLD_SIZE", "8"}}), "WORLD_SIZE=8");
  EXPECT_REFUSED(with(open_mpi, {{"RANK", "0"}}), "RANK is set, but WORLD_SIZE is not");
}

TEST(Identity, Incomplete) {
  EXPECT_REFUSED((Environment{{"RANK", "0"}}), "WORLD_SIZE is not");
  EXPECT_REFUSED((Environment{{"WORLD_SIZE", "2"}}), "RANK is not");
  EXPECT_REFUSED((Environment{{"LOCAL_RANK", "0"}}), "LOCAL_RANK is set");
  EXPECT_REFUSED(without(torchrun, "MASTER_ADDR"), "MASTER_ADDR is not set");
  EXPECT_REFUSED(without(torchrun, "MASTER_PORT"), "MASTER_PORT is not set");
  EXPECT_REFUSED(with(torchrun, {{"MASTER_ADDR", ""}}), "MASTER_ADDR is not set");
}

TEST(Identity, NotNumbers) {
  for (const char* value : {"", " 1", "1 ", "one", "-1", "1.0", "0x1", "99999999999999999999"}) {
    EXPECT_REFUSED(with(torchrun, {{"RANK", value}}), "RANK='" + std::string(value) + "' is not a number");
    EXPECT_REFUSED(with(open_mpi, {{"OMPI_COMM_WORLD_RANK", value}}), "is not a number");
  }
  EXPECT_REFUSED(with(torchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE='0'");
  EXPECT_REFUSED(with(torchrun, {{"LOCAL_RANK", "x"}}), "LOCAL_RANK='x'");
}

TEST(Identity, RankBeyondSize) {
  EXPECT_REFUSED(with(torchrun, {{"RANK", "4"}}), "must be less than WORLD_SIZE=4");
  EXPECT_REFUSED(with(open_mpi, {{"OMPI_COMM_WORLD_RANK", "4"}}), "must be less than the world size 4");
  EXPECT_REFUSED(with(torchrun, {{"LOCAL_RANK", "2"}}), "must be less than LOCAL_WORLD_SIZE=2");
  EXPECT_REFUSED(with(torchrun, {{"LOCAL_WORLD_SIZE", "8"}}), "more than WORLD_SIZE=4");
}

TEST(Identity, BadPort) {
  for (const char* port : {"0", "65536", "http", "-1"}) EXPECT_REFUSED(with(torchrun, {{"MASTER_PORT", port}}), "MASTER_PORT='");
}

TEST(Identity, SrunWithoutPmixIsManyRankZeros) {
  EXPECT_REFUSED((Environment{{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "0"}}), "srun started 2 tasks without MPI");
  EXPECT_EQ(from({{"SLURM_STEP_NUM_TASKS", "1"}}).source, Source::alone);
}

TEST(Identity, VariablesUnderSrunWithoutPmix) {
  const auto id = from(with(torchrun, {{"SLURM_STEP_NUM_TASKS", "4"}}));
  EXPECT_EQ(id.source, Source::variables);
}

}  // namespace
}  // namespace manyranks
