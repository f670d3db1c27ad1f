// Every finding, good, warning and broken, from made-up nodes.
#include "doctor/findings.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

namespace manyranks::doctor {
namespace {

constexpr int64_t MiB = 1 << 20, GiB = 1 << 30;

NodeFacts cpu_node() {
  NodeFacts f;
  f.host = "n0";
  f.launcher = "Open MPI";
  f.cores_of_rank = {{0}, {1}};
  f.cores = 2;
  f.numa_of_core = {0, 0};
  f.cpu_model = "Some CPU";
  f.instruction_sets = {"avx2"};
  f.memory_available = 20 * GiB;
  f.memory_total = 24 * GiB;
  f.shared_memory_size = f.shared_memory_free = 8 * GiB;
  f.stack_limit = 8 * MiB;
  f.mpi_version = "Open MPI 4.1.4";
  f.mpi_cuda_aware = "no";
  f.torch_version = "2.14.1";
  return f;
}

NodeFacts gpu_node() {
  NodeFacts f = cpu_node();
  f.mpi_cuda_aware = "yes";
  f.nccl_header = f.nccl_library = "2.30.7";
  f.driver = "580.65.06";
  f.driver_cuda = f.cuda_runtime = f.torch_cuda = "13.0";
  f.pci_gpus = f.driver_gpus = 2;
  f.gpus = {{"H100", "9.0", 80 * GiB}, {"H100", "9.0", 80 * GiB}};
  f.peer_access = {{1, 1}, {1, 1}};
  return f;
}

Finding finding(const NodeFacts& facts, const std::string& what) {
  for (const auto& one : examine(facts))
    if (one.what == what) return one;
  ADD_FAILURE() << "no finding " << what;
  return {};
}

TEST(Doctor, SoundNodesAreGoodAllOver) {
  for (const auto& facts : {cpu_node(), gpu_node()})
    for (const auto& one : examine(facts)) {
      EXPECT_EQ(one.level, Level::good) << one.what << ": " << one.detail;
      EXPECT_FALSE(one.detail.empty()) << one.what;
      EXPECT_TRUE(one.advice.empty()) << one.what;
    }
}

struct Case {
  const char* name;
  const char* what;
  Level level;
  const char* words;  // in the detail
  bool gpu;           // starts from gpu_node()
  std::function<void(NodeFacts&)> spoil;
};

class DoctorFinding : public testing::TestWithParam<Case> {};

TEST_P(DoctorFinding, HasItsLevelAndAdvice) {
  const Case& c = GetParam();
  NodeFacts facts = c.gpu ? gpu_node() : cpu_node();
  c.spoil(facts);
  const Finding found = finding(facts, c.what);
  EXPECT_EQ(found.level, c.level) << found.detail;
  EXPECT_NE(found.detail.find(c.words), std::string::npos) << found.detail;
  EXPECT_EQ(found.advice.empty(), c.level == Level::good);
}

const Case cases[] = {
    {"no_mpi", "MPI", Level::broken, "version", false, [](NodeFacts& f) { f.mpi_version = ""; }},
    {"mpi_not_cuda_aware", "MPI", Level::warning, "CUDA-aware: no", true, [](NodeFacts& f) { f.mpi_cuda_aware = "no"; }},
    {"nccl_library_older", "NCCL", Level::broken, "library 2.28.9", true, [](NodeFacts& f) { f.nccl_library = "2.28.9"; }},
    {"nccl_library_newer", "NCCL", Level::warning, "library 2.31.0", true, [](NodeFacts& f) { f.nccl_library = "2.31.0"; }},
    {"nccl_library_missing", "NCCL", Level::broken, "does not answer", true, [](NodeFacts& f) { f.nccl_library = ""; }},
    {"nccl_not_built_with_gpus", "NCCL", Level::warning, "without CUDA", true, [](NodeFacts& f) { f.nccl_header = f.nccl_library = ""; }},
    {"gpu_without_driver", "driver", Level::broken, "no driver", false, [](NodeFacts& f) { f.pci_gpus = 1; }},
    {"driver_too_old", "driver", Level::broken, "up to CUDA 12.8", true, [](NodeFacts& f) { f.driver_cuda = "12.8"; }},
    {"driver_minor_older", "driver", Level::warning, "up to CUDA 13.0", true, [](NodeFacts& f) { f.cuda_runtime = "13.2"; }},
    {"driver_newer", "driver", Level::good, "up to CUDA 14.1", true, [](NodeFacts& f) { f.driver_cuda = "14.1"; }},
    {"driver_unused", "driver", Level::good, "unused", true, [](NodeFacts& f) { f.cuda_runtime = ""; }},
    {"torch_cpu_on_gpu_node", "LibTorch", Level::warning, "CPU only", true, [](NodeFacts& f) { f.torch_cuda = ""; }},
    {"torch_other_cuda", "LibTorch", Level::broken, "CUDA 12.8", true, [](NodeFacts& f) { f.torch_cuda = "12.8"; }},
    {"gpus_invisible", "GPUs", Level::broken, "LibTorch sees none", true, [](NodeFacts& f) { f.gpus.clear(); }},
    {"gpus_hidden", "GPUs", Level::warning, "the driver lists 4", true, [](NodeFacts& f) { f.driver_gpus = 4; }},
    {"gpus_idle", "GPUs", Level::warning, "use 1 of 2", true, [](NodeFacts& f) { f.cores_of_rank = {{0}}; }},
    {"no_peer_access", "peer-to-peer", Level::warning, "1->0", true, [](NodeFacts& f) { f.peer_access[1][0] = 0; }},
    {"amx_unusable_uncapped", "instruction sets", Level::broken, "SIGILL", false, [](NodeFacts& f) { f.amx_advertised = true; }},
    {"amx_unusable_wrong_cap", "instruction sets", Level::broken, "SIGILL", false, [](NodeFacts& f) { f.amx_advertised = true, f.onednn_max_isa = "AVX512_CORE_AMX"; }},
    {"amx_unusable_capped", "instruction sets", Level::warning, "unusable", false, [](NodeFacts& f) { f.amx_advertised = true, f.onednn_max_isa = "AVX512_CORE_BF16"; }},
    {"amx_sound", "instruction sets", Level::good, "avx2", false, [](NodeFacts& f) { f.amx_advertised = f.amx_usable = true; }},
    {"no_avx", "instruction sets", Level::warning, "none of AVX2", false, [](NodeFacts& f) { f.instruction_sets.clear(); }},
    {"more_ranks_than_cores", "cores", Level::warning, "2 for 3 rank(s)", false, [](NodeFacts& f) { f.cores_of_rank = {{0, 1}, {0, 1}, {0, 1}}; }},
    {"more_threads_than_cores", "cores", Level::warning, "of 2 thread(s)", false, [](NodeFacts& f) { f.threads_per_rank = 2; }},
    {"bound_too_tightly", "binding", Level::warning, "may run on 1 core(s)", false, [](NodeFacts& f) { f.threads_per_rank = 2; }},
    {"bound_to_the_same_core", "binding", Level::warning, "share core(s) 0", false, [](NodeFacts& f) { f.cores_of_rank = {{0}, {0}}; }},
    {"spans_numa_nodes", "binding", Level::warning, "may move between 2", false, [](NodeFacts& f) { f.numa_of_core = {0, 1}, f.cores_of_rank = {{0, 1}}; }},
    {"bound_to_numa_nodes", "binding", Level::good, "2 NUMA node(s)", false, [](NodeFacts& f) { f.numa_of_core = {0, 1}; }},
    {"unbound", "binding", Level::good, "free to move", false, [](NodeFacts& f) { f.cores_of_rank = {{0, 1}, {0, 1}}; }},
    {"memory_short", "memory", Level::warning, "1.0 GiB per rank", false, [](NodeFacts& f) { f.memory_available = 2 * GiB; }},
    {"memory_gone", "memory", Level::broken, "100.0 MiB per rank", false, [](NodeFacts& f) { f.memory_available = 200 * MiB; }},
    {"docker_shared_memory", "shared memory", Level::warning, "64.0 MiB", false, [](NodeFacts& f) { f.shared_memory_size = f.shared_memory_free = 64 * MiB; }},
    {"shared_memory_full", "shared memory", Level::broken, "0 B free", false, [](NodeFacts& f) { f.shared_memory_free = 0; }},
    {"stale_segments", "stale segments", Level::warning, "vader_segment.n0", false, [](NodeFacts& f) { f.stale_segments = {"/dev/shm/vader_segment.n0.1"}; }},
    {"memlock_with_rdma", "memory lock", Level::warning, "64.0 KiB", false, [](NodeFacts& f) { f.has_rdma = true, f.memlock_limit = 65536; }},
    {"memlock_without_rdma", "memory lock", Level::good, "64.0 KiB", false, [](NodeFacts& f) { f.memlock_limit = 65536; }},
    {"memlock_unlimited_with_rdma", "memory lock", Level::good, "unlimited", false, [](NodeFacts& f) { f.has_rdma = true; }},
    {"stack_small", "stack", Level::warning, "4.0 MiB", false, [](NodeFacts& f) { f.stack_limit = 4 * MiB; }},
    {"stack_tiny", "stack", Level::broken, "64.0 KiB", false, [](NodeFacts& f) { f.stack_limit = 65536; }},
    {"stack_unlimited", "stack", Level::good, "unlimited", false, [](NodeFacts& f) { f.stack_limit = -1; }},
    {"master_answers", "master", Level::good, "answers", false, [](NodeFacts& f) { f.master = "n0:29500", f.master_state = "answers"; }},
    {"master_silent", "master", Level::warning, "no answer", false, [](NodeFacts& f) { f.master = "n0:29500", f.master_state = "no answer"; }},
    {"master_unknown", "master", Level::broken, "cannot resolve", false, [](NodeFacts& f) { f.master = "nowhere:29500", f.master_state = "cannot resolve"; }},
};
INSTANTIATE_TEST_SUITE_P(All, DoctorFinding, testing::ValuesIn(cases), [](const auto& info) { return std::string(info.param.name); });

TEST(Doctor, MergesRanksOfAHost) {
  NodeFacts a = cpu_node(), b = cpu_node(), c = cpu_node();
  a.cores_of_rank = {{0}};
  b.cores_of_rank = {{1}};
  c.cores_of_rank = {{0, 1}};
  c.host = "n1";
  const auto hosts = merge_by_host({a, c, b});
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].host, "n0");
  EXPECT_EQ(hosts[0].cores_of_rank, (std::vector<std::vector<int>>{{0}, {1}}));
  EXPECT_EQ(hosts[1].cores_of_rank.size(), 1u);
}

TEST(Doctor, FactsSurviveJson) {
  NodeFacts facts = gpu_node();
  facts.master = "n0:1", facts.master_state = "answers", facts.stale_segments = {"a"}, facts.has_rdma = true, facts.memlock_limit = 3, facts.threads_per_rank = 7;
  const nlohmann::json json = facts;
  const auto back = nlohmann::json::parse(json.dump()).get<NodeFacts>();
  EXPECT_EQ(nlohmann::json(back), json);
  EXPECT_EQ(back.gpus[1].memory, 80 * GiB);
  EXPECT_EQ(back.threads_per_rank, 7);
  EXPECT_EQ(json.size(), 34u) << "a new field of NodeFacts must travel too: add it to each_field()";
}

}  // namespace
}  // namespace manyranks::doctor
