// NodeFacts to and from JSON, for the gathering over ranks and for --json; and one set of facts per host.
#include <nlohmann/json.hpp>

#include "doctor/findings.hpp"

namespace manyranks::doctor {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Gpu, name, capability, memory)

namespace {

// One list of the fields for both ways. `visit` gets each name and each field.
template <typename Facts, typename Visit>
void each_field(Facts& f, Visit visit) {
  visit("host", f.host), visit("launcher", f.launcher), visit("threads_per_rank", f.threads_per_rank);
  visit("cores_of_rank", f.cores_of_rank), visit("cores", f.cores), visit("numa_of_core", f.numa_of_core);
  visit("cpu_model", f.cpu_model), visit("instruction_sets", f.instruction_sets);
  visit("amx_advertised", f.amx_advertised), visit("amx_usable", f.amx_usable), visit("onednn_max_isa", f.onednn_max_isa);
  visit("memory_available", f.memory_available), visit("memory_total", f.memory_total);
  visit("shared_memory_size", f.shared_memory_size), visit("shared_memory_free", f.shared_memory_free);
  visit("stale_segments", f.stale_segments), visit("memlock_limit", f.memlock_limit), visit("stack_limit", f.stack_limit);
  visit("has_rdma", f.has_rdma), visit("mpi_version", f.mpi_version), visit("mpi_cuda_aware", f.mpi_cuda_aware);
  visit("nccl_header", f.nccl_header), visit("nccl_library", f.nccl_library);
  visit("driver", f.driver), visit("driver_cuda", f.driver_cuda), visit("cuda_runtime", f.cuda_runtime);
  visit("torch_version", f.torch_version), visit("torch_cuda", f.torch_cuda);
  visit("pci_gpus", f.pci_gpus), visit("driver_gpus", f.driver_gpus), visit("gpus", f.gpus), visit("peer_access", f.peer_access);
  visit("master", f.master), visit("master_state", f.master_state);
}

}  // namespace

void to_json(nlohmann::json& json, const NodeFacts& facts) {
  json = nlohmann::json::object();
  each_field(facts, [&](const char* name, const auto& field) { json[name] = field; });
}

void from_json(const nlohmann::json& json, NodeFacts& facts) {
  each_field(facts, [&](const char* name, auto& field) { json.at(name).get_to(field); });
}

void to_json(nlohmann::json& json, const Finding& finding) {
  json = {{"what", finding.what}, {"level", level_name(finding.level)}, {"detail", finding.detail}, {"advice", finding.advice}};
}

std::vector<NodeFacts> merge_by_host(const std::vector<NodeFacts>& ranks) {
  std::vector<NodeFacts> hosts;
  for (const auto& rank : ranks) {
    size_t i = 0;
    while (i < hosts.size() && hosts[i].host != rank.host) ++i;
    if (i == hosts.size()) {
      hosts.push_back(rank);
    } else {
      hosts[i].cores_of_rank.insert(hosts[i].cores_of_rank.end(), rank.cores_of_rank.begin(), rank.cores_of_rank.end());
    }
  }
  return hosts;
}

}  // namespace manyranks::doctor
