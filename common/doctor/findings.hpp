// What is wrong with a node, from facts alone: pure, so that every finding can be tested without the machine that has it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace manyranks::doctor {

struct Gpu {
  std::string name;
  std::string capability;  // "9.0"
  int64_t memory = 0;      // bytes
};

// Empty strings: not there. Each rank collects its own; those of one host are merged.
struct NodeFacts {
  std::string host, launcher;
  int threads_per_rank = 1;
  std::vector<std::vector<int>> cores_of_rank;  // by local rank: the cores it may run on
  int cores = 0;                                // of the node
  std::vector<int> numa_of_core;                // by core
  std::string cpu_model;
  std::vector<std::string> instruction_sets;    // usable ones
  bool amx_advertised = false, amx_usable = false;
  std::string onednn_max_isa;  // ONEDNN_MAX_CPU_ISA as LibTorch finds it

  int64_t memory_available = 0, memory_total = 0;    // bytes
  int64_t shared_memory_size = 0, shared_memory_free = 0;
  std::vector<std::string> stale_segments;           // shared-memory files of jobs that no longer run
  int64_t memlock_limit = -1, stack_limit = -1;      // bytes, -1: unlimited
  bool has_rdma = false;

  std::string mpi_version, mpi_cuda_aware;           // yes | no | unknown
  std::string nccl_header, nccl_library;             // both empty: built without CUDA
  std::string driver, driver_cuda;                   // "580.65.06"; the newest CUDA that it runs: "13.0"
  std::string cuda_runtime;                          // that we link with
  std::string torch_version, torch_cuda;             // torch_cuda: the CUDA it was built for
  int pci_gpus = 0, driver_gpus = 0;                 // NVIDIA GPUs on the bus, and those that the driver lists
  std::vector<Gpu> gpus;                             // those that LibTorch sees
  std::vector<std::vector<int>> peer_access;         // [i][j]: 1 if i reaches j's memory

  std::string master, master_state;                  // "host:port"; answers | no answer | cannot resolve
};

enum class Level { good, warning, broken };
const char* level_name(Level level);

struct Finding {
  std::string what;
  Level level = Level::good;
  std::string detail;
  std::string advice;  // what to do; empty if good
};

std::vector<Finding> examine(const NodeFacts& facts);

// Facts of every rank, in rank order, to one per host: cores_of_rank gets one entry per rank.
std::vector<NodeFacts> merge_by_host(const std::vector<NodeFacts>& ranks);

void to_json(nlohmann::json& json, const NodeFacts& facts);
void from_json(const nlohmann::json& json, NodeFacts& facts);
void to_json(nlohmann::json& json, const Finding& finding);

}  // namespace manyranks::doctor
