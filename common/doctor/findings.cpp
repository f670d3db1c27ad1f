#include "doctor/findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "measure/table.hpp"  // format_bytes

namespace manyranks::doctor {
namespace {

constexpr int64_t MiB = 1 << 20, GiB = 1 << 30;

Finding good(std::string what, std::string detail) { return {std::move(what), Level::good, std::move(detail), ""}; }
Finding warning(std::string what, std::string detail, std::string advice) { return {std::move(what), Level::warning, std::move(detail), std::move(advice)}; }
Finding broken(std::string what, std::string detail, std::string advice) { return {std::move(what), Level::broken, std::move(detail), std::move(advice)}; }

// "13.0" -> {13, 0}; {0, 0} if it is no version.
std::pair<int, int> major_minor(const std::string& version) {
  int major = 0, minor = 0;
  std::sscanf(version.c_str(), "%d.%d", &major, &minor);
  return {major, minor};
}

int ranks_of(const NodeFacts& f) { return std::max<int>(1, static_cast<int>(f.cores_of_rank.size())); }

Finding launcher(const NodeFacts& f) { return good("launcher", fmt::format("{}, {} rank(s) here", f.launcher, ranks_of(f))); }

Finding mpi(const NodeFacts& f) {
  if (f.mpi_version.empty()) return broken("MPI", "the MPI library does not say its version", "scripts/setup.sh installs Open MPI; on a cluster: module load openmpi");
  const std::string detail = fmt::format("{}, CUDA-aware: {}", f.mpi_version, f.mpi_cuda_aware);
  if (!f.gpus.empty() && f.mpi_cuda_aware != "yes")
    return warning("MPI", detail, "nothing for training (NCCL carries CUDA tensors); CUDA-aware MPI lessons need an MPI built with CUDA");
  return good("MPI", detail);
}

Finding nccl(const NodeFacts& f) {
  if (f.nccl_header.empty()) {
    if (f.driver_gpus > 0) return warning("NCCL", "built without CUDA, but this node has GPUs", "scripts/setup.sh --cuda, then cmake --preset cuda");
    return good("NCCL", "not built in: CPU only");
  }
  if (f.nccl_library.empty()) return broken("NCCL", "compiled with " + f.nccl_header + ", but the library does not answer", "check LD_LIBRARY_PATH for another libnccl.so.2");
  const std::string detail = fmt::format("header {}, library {}", f.nccl_header, f.nccl_library);
  if (f.nccl_header == f.nccl_library) return good("NCCL", detail);
  if (major_minor(f.nccl_library) < major_minor(f.nccl_header))
    return broken("NCCL", detail, "an older libnccl.so.2 is found first: unset LD_LIBRARY_PATH, or module unload nccl");
  return warning("NCCL", detail, "another libnccl.so.2 than at build time is found first; unset LD_LIBRARY_PATH if NCCL misbehaves");
}

Finding driver(const NodeFacts& f) {
  if (f.driver.empty()) {
    if (f.pci_gpus > 0) return broken("driver", fmt::format("{} NVIDIA GPU(s) on the bus, no driver", f.pci_gpus), "install the NVIDIA driver; in a container: --gpus all");
    return good("driver", "no NVIDIA driver and no NVIDIA GPU: CPU only");
  }
  if (f.cuda_runtime.empty()) return good("driver", f.driver + ", unused: built without CUDA");
  const std::string detail = fmt::format("{} runs up to CUDA {}, we use CUDA {}", f.driver, f.driver_cuda.empty() ? "?" : f.driver_cuda, f.cuda_runtime);
  const auto have = major_minor(f.driver_cuda), need = major_minor(f.cuda_runtime);
  if (have.first < need.first) return broken("driver", detail, "update the driver, or build against a LibTorch for CUDA " + f.driver_cuda);
  if (have < need) return warning("driver", detail, "works by minor-version compatibility, without just-in-time compiled kernels; update the driver");
  return good("driver", detail);
}

Finding libtorch(const NodeFacts& f) {
  const std::string detail = f.torch_version + (f.torch_cuda.empty() ? ", CPU only" : ", CUDA " + f.torch_cuda);
  if (f.torch_cuda.empty() && f.driver_gpus > 0)
    return warning("LibTorch", fmt::format("{}, but this node has {} GPU(s)", detail, f.driver_gpus), "scripts/setup.sh --cuda");
  if (!f.torch_cuda.empty() && !f.cuda_runtime.empty() && major_minor(f.torch_cuda).first != major_minor(f.cuda_runtime).first)
    return broken("LibTorch", fmt::format("{}, but the CUDA runtime is {}", detail, f.cuda_runtime), "build with the toolkit of LibTorch's CUDA version");
  return good("LibTorch", detail);
}

Finding gpus(const NodeFacts& f) {
  const int seen = static_cast<int>(f.gpus.size());
  std::string names = seen == 0 ? "none" : "";
  for (const auto& gpu : f.gpus) names += fmt::format("{}{} ({}, sm {})", names.empty() ? "" : ", ", gpu.name, format_bytes(gpu.memory), gpu.capability);
  if (seen == 0 && f.driver_gpus > 0 && !f.torch_cuda.empty())
    return broken("GPUs", fmt::format("the driver lists {}, LibTorch sees none", f.driver_gpus), "check CUDA_VISIBLE_DEVICES and the driver's version");
  if (seen < f.driver_gpus && !f.torch_cuda.empty())
    return warning("GPUs", fmt::format("{}; the driver lists {}", names, f.driver_gpus), "CUDA_VISIBLE_DEVICES hides some: on purpose?");
  if (seen > 0 && ranks_of(f) < seen) return warning("GPUs", fmt::format("{}; {} rank(s) use {} of {}", names, ranks_of(f), ranks_of(f), seen), "one rank per GPU");
  return good("GPUs", names);
}

Finding peer_to_peer(const NodeFacts& f) {
  std::vector<std::string> missing;
  size_t pairs = 0;
  for (size_t i = 0; i < f.peer_access.size(); ++i)
    for (size_t j = 0; j < f.peer_access[i].size(); ++j) {
      if (i == j) continue;
      ++pairs;
      if (!f.peer_access[i][j]) missing.push_back(fmt::format("{}->{}", i, j));
    }
  if (pairs == 0) return good("peer-to-peer", "fewer than two GPUs");
  if (missing.empty()) return good("peer-to-peer", fmt::format("all {} pairs", pairs));
  return warning("peer-to-peer", fmt::format("{} of {} pairs cannot: {}", missing.size(), pairs, fmt::join(missing, " ")),
                 "NCCL goes through host memory there: see nvidia-smi topo -m; PCIe ACS or a virtual machine often forbids it");
}

Finding instruction_sets(const NodeFacts& f) {
  const std::string detail = fmt::format("{}: {}", f.cpu_model.empty() ? "CPU" : f.cpu_model, fmt::join(f.instruction_sets, " "));
  if (f.amx_advertised && !f.amx_usable) {
    if (f.onednn_max_isa.empty() || f.onednn_max_isa.find("AMX") != std::string::npos || f.onednn_max_isa == "DEFAULT")
      return broken("instruction sets", detail + "; AMX advertised without a tile palette, and oneDNN may use it: bf16 products end with SIGILL",
                    "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16");
    return warning("instruction sets", detail + "; AMX advertised but unusable", "nothing: ONEDNN_MAX_CPU_ISA=" + f.onednn_max_isa + " keeps oneDNN off it");
  }
  if (f.instruction_sets.empty()) return warning("instruction sets", detail + "none of AVX2 and above", "matrix products will be slow; do not compare timings");
  return good("instruction sets", detail);
}

Finding cores(const NodeFacts& f) {
  const int wanted = ranks_of(f) * f.threads_per_rank;
  const std::string detail = fmt::format("{} for {} rank(s) of {} thread(s)", f.cores, ranks_of(f), f.threads_per_rank);
  if (wanted > f.cores) return warning("cores", detail, "fewer ranks or --threads: timings of an oversubscribed run mean little (the CSV marks them)");
  return good("cores", detail);
}

Finding binding(const NodeFacts& f) {
  std::set<int> numa_nodes(f.numa_of_core.begin(), f.numa_of_core.end());
  const std::string shape = fmt::format("{} NUMA node(s)", std::max<size_t>(1, numa_nodes.size()));
  for (size_t rank = 0; rank < f.cores_of_rank.size(); ++rank) {
    const auto& mine = f.cores_of_rank[rank];
    if (static_cast<int>(mine.size()) < f.threads_per_rank)
      return warning("binding", fmt::format("{}; local rank {} may run on {} core(s), but has {} thread(s)", shape, rank, mine.size(), f.threads_per_rank),
                     "mpirun --bind-to none, or --map-by slot:PE=THREADS");
    std::set<int> touched;
    for (const int core : mine)
      if (core < static_cast<int>(f.numa_of_core.size())) touched.insert(f.numa_of_core[core]);
    if (touched.size() > 1)
      return warning("binding", fmt::format("{}; local rank {} may move between {} of them", shape, rank, touched.size()), "mpirun --bind-to numa, or srun --cpu-bind=cores");
    for (size_t other = 0; other < rank; ++other) {
      const bool whole_node = static_cast<int>(mine.size()) >= f.cores;
      if (!whole_node && f.cores_of_rank[other] == mine && static_cast<int>(mine.size()) < 2 * f.threads_per_rank)
        return warning("binding", fmt::format("{}; local ranks {} and {} share core(s) {}", shape, other, rank, fmt::join(mine, ",")), "mpirun --bind-to core, or start fewer ranks");
    }
  }
  return good("binding", shape + (f.cores_of_rank.size() && static_cast<int>(f.cores_of_rank[0].size()) < f.cores ? ", ranks bound" : ", ranks free to move"));
}

Finding memory(const NodeFacts& f) {
  const int64_t each = f.memory_available / ranks_of(f);
  const std::string detail = fmt::format("{} of {} available, {} per rank", format_bytes(f.memory_available), format_bytes(f.memory_total), format_bytes(each));
  if (each < 512 * MiB) return broken("memory", detail, "LibTorch alone takes about 400 MiB per rank: start fewer ranks, or end what uses the memory");
  if (each < 2 * GiB) return warning("memory", detail, "use --quick and small batches");
  return good("memory", detail);
}

Finding shared_memory(const NodeFacts& f) {
  const std::string detail = fmt::format("{} free of {} in /dev/shm", format_bytes(f.shared_memory_free), format_bytes(f.shared_memory_size));
  const std::string advice = "docker run --shm-size=8g (or --ipc=host); elsewhere: mount -o remount,size=8g /dev/shm";
  if (f.shared_memory_free < 16 * MiB * ranks_of(f)) return broken("shared memory", detail, advice);
  if (f.shared_memory_free < 1 * GiB) return warning("shared memory", detail, advice);
  return good("shared memory", detail);
}

Finding stale_segments(const NodeFacts& f) {
  if (f.stale_segments.empty()) return good("stale segments", "none");
  return warning("stale segments", fmt::format("{} left by jobs that were killed: {}", f.stale_segments.size(), fmt::join(f.stale_segments, " ")),
                 fmt::format("rm {}", fmt::join(f.stale_segments, " ")));
}

std::string limit_text(int64_t limit) { return limit < 0 ? "unlimited" : format_bytes(limit); }

Finding memlock(const NodeFacts& f) {
  if (f.has_rdma && f.memlock_limit >= 0)
    return warning("memory lock", limit_text(f.memlock_limit) + ", but InfiniBand/RoCE must lock its buffers", "ulimit -l unlimited; in Slurm: PropagateResourceLimitsExcept=MEMLOCK; in a container: --ulimit memlock=-1");
  return good("memory lock", limit_text(f.memlock_limit) + (f.has_rdma ? "" : ", no RDMA device"));
}

Finding stack(const NodeFacts& f) {
  if (f.stack_limit >= 0 && f.stack_limit < 1 * MiB) return broken("stack", limit_text(f.stack_limit), "ulimit -s 8192");
  if (f.stack_limit >= 0 && f.stack_limit < 8 * MiB) return warning("stack", limit_text(f.stack_limit), "ulimit -s 8192: deep autograd graphs recurse");
  return good("stack", limit_text(f.stack_limit));
}

Finding master(const NodeFacts& f) {
  if (f.master.empty()) return good("master", "MASTER_ADDR and MASTER_PORT not set: not needed with MPI");
  const std::string detail = f.master + ": " + f.master_state;
  if (f.master_state == "answers") return good("master", detail);
  if (f.master_state == "cannot resolve") return broken("master", detail, "MASTER_ADDR must be a name or address that every node knows");
  return warning("master", detail, "start rank 0 first, open the port in the firewall, or unset MASTER_ADDR and MASTER_PORT (left from another run?)");
}

}  // namespace

const char* level_name(Level level) { return level == Level::good ? "good" : level == Level::warning ? "warning" : "broken"; }

std::vector<Finding> examine(const NodeFacts& f) {
  return {launcher(f), mpi(f),    nccl(f),   driver(f),        libtorch(f),       gpus(f),    peer_to_peer(f), instruction_sets(f),
          cores(f),    binding(f), memory(f), shared_memory(f), stale_segments(f), memlock(f), stack(f),        master(f)};
}

}  // namespace manyranks::doctor
