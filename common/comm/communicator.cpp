#include "comm/communicator.hpp"

#include <unistd.h>

#include <algorithm>

#include "comm/fabric.hpp"
#include "comm/gloo_wire.hpp"
#include "comm/host_communicator.hpp"
#include "comm/monitor.hpp"
#include "comm/mpi_wire.hpp"
#include "launch/process.hpp"

namespace manyranks {
namespace {

struct Choice {
  std::string backend, why;
};

Choice choose(const Process& process) {
  const std::string asked = process.options().backend;
  const bool cuda = process.device().is_cuda(), by_mpi = process.has_mpi(), many = process.world_size() > 1;
  if (asked == "mpi" && !by_mpi) throw unavailable_error("--backend mpi", "not started by an MPI launcher", "mpirun -n N ..., or --backend gloo");
  if (asked == "nccl" && !cuda) throw unavailable_error("--backend nccl", "it moves CUDA tensors, and the device is " + process.device().str(), "--device cuda, or --backend auto");
  if (cuda && asked != "auto" && asked != "nccl") throw unavailable_error("--backend " + asked, "it moves CPU tensors, and the device is " + process.device().str(), "--backend auto, or --device cpu");
  if (asked != "auto") return {asked, "--backend " + asked};
  if (cuda) return {"nccl", "the device is " + process.device().str()};
  if (by_mpi) return {"mpi", "CPU tensors, launched by MPI"};
  if (process.identity().source == Identity::Source::variables) return {"gloo", "CPU tensors, launched by variables"};
  return {many ? "gloo" : "alone", "one rank, no launcher"};
}

// The world's communicator also owns the watch over the peers: it ends with it.
class WorldCommunicator : public HostCommunicator {
 public:
  WorldCommunicator(Process& process, std::shared_ptr<Fabric> fabric, std::unique_ptr<Group> group, std::vector<int> members, std::string why)
      : HostCommunicator(fabric, std::move(group), std::move(members), "world", std::move(why)) {
    Monitor::Actions actions;
    const bool by_mpi = process.has_mpi();
    actions.end_job = [&process](const Error& error) { process.end_job(error); };
    actions.follow = [by_mpi](int code) {
      // MPI_Abort by the rank that failed kills us; ending first would only add mpirun's own complaint.
      if (by_mpi) std::this_thread::sleep_for(std::chrono::seconds(1));
      std::fflush(stdout);
      _exit(code);
    };
    if (process.nodes() > 1 && !by_mpi) actions.ended_elsewhere = [&process] { return process.rendezvous().ended_by_peer(); };
    if (members_of(fabric) > 1) monitor_ = std::make_unique<Monitor>(fabric->peers, std::move(actions));
  }

  void finish() override {
    HostCommunicator::finish();
    monitor_.reset();
  }

 private:
  static size_t members_of(const std::shared_ptr<Fabric>& fabric) { return fabric->host_of.size(); }
  std::unique_ptr<Monitor> monitor_;
};

// MANYRANKS_FORCE_WIRE=N treats each N ranks as a host of their own, so that the wires can be tested on one machine.
std::string pretended_host(int rank) {
  const char* ranks_per_host = std::getenv("MANYRANKS_FORCE_WIRE");
  const int ranks = ranks_per_host ? std::atoi(ranks_per_host) : 0;
  return ranks > 0 ? fmt::format("{} {}", host_identity(), rank / ranks) : host_identity();
}

// Where all ranks can be reached from: the master's address, or under MPI the first host.
std::string meeting_point(const Process& process) {
  if (process.nodes() == 1) return "";
  return process.identity().master_address.empty() ? process.hosts()[0] : process.identity().master_address;
}

std::shared_ptr<Fabric> make_fabric(Process& process, const std::string& backend) {
  auto fabric = std::make_shared<Fabric>();
  fabric->backend = backend;
  fabric->world_rank = process.rank();
  fabric->timeout_s = process.options().timeout_s;
  const AllGather world = [&](const std::string& mine) { return process.rendezvous().all_gather(mine); };
  const auto hosts = world(pretended_host(process.rank()));
  std::vector<std::string> seen;
  std::vector<int> here;
  for (int r = 0; r < process.world_size(); ++r) {
    const auto found = std::find(seen.begin(), seen.end(), hosts[r]);
    fabric->host_of.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(hosts[r]);
  }
  int index = 0;
  for (int r = 0; r < process.world_size(); ++r) {
    if (fabric->host_of[r] != fabric->host_of[process.rank()]) continue;
    if (r == process.rank()) index = static_cast<int>(here.size());
    here.push_back(r);
  }
  fabric->peers = std::make_shared<HostPeers>(index, here, world);
  if (seen.size() > 1 && backend == "mpi") fabric->wire = make_mpi_wire(fabric->timeout_s);
  if (seen.size() > 1 && backend == "gloo") fabric->wire = make_gloo_wire(process.rank(), process.world_size(), meeting_point(process), fabric->timeout_s, world);
  return fabric;
}

}  // namespace

std::unique_ptr<Communicator> connect(Process& process) {
  const Choice choice = choose(process);
  const auto fabric = make_fabric(process, choice.backend);
  std::vector<int> everybody(process.world_size());
  for (int r = 0; r < process.world_size(); ++r) everybody[r] = r;
  const AllGather world = [&](const std::string& mine) { return process.rendezvous().all_gather(mine); };
  auto group = fabric->make_group(everybody, everybody, "world", world);
  auto communicator = std::make_unique<WorldCommunicator>(process, fabric, std::move(group), everybody, choice.why);
  if (process.is_root() && !process.options().json)
    fmt::print("backend {} ({}), transport: {}\n", communicator->backend(), communicator->why(), communicator->transport());
  return communicator;
}

}  // namespace manyranks
