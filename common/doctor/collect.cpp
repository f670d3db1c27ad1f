#include "doctor/collect.hpp"

#include <dlfcn.h>
#include <mpi.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#ifdef MANYRANKS_HAVE_CUDA
#include <ATen/detail/CUDAHooksInterface.h>
#include <cuda_runtime_api.h>
#endif

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>

#include "comm/segment.hpp"  // available_memory
#include "launch/cpu_features.hpp"
#include "launch/process.hpp"  // Process
#include "measure/versions.hpp"

namespace manyranks::doctor {
namespace {

namespace fs = std::filesystem;

std::string first_word(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

int64_t limit(int resource) {
  rlimit value{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &value) != 0 || value.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(value.rlim_cur);
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

template <typename Visit>
void for_each_entry(const char* folder, Visit visit) {
  std::error_code ignored;  // a folder that is not there has no entries
  for (const auto& entry : fs::directory_iterator(folder, ignored)) visit(entry.path());
}

std::vector<int> numa_of_core() {
  std::vector<int> numa(static_cast<size_t>(sysconf(_SC_NPROCESSORS_CONF)), 0);
  for_each_entry("/sys/devices/system/node", [&](const fs::path& path) {
    const std::string name = path.filename();
    if (name.rfind("node", 0) != 0) return;
    for (size_t core = 0; core < numa.size(); ++core)
      if (fs::exists(path / ("cpu" + std::to_string(core)))) numa[core] = std::stoi(name.substr(4));
  });
  return numa;
}

// Open MPI 4 names them vader_segment.HOST.UID.JOBID.RANK (5: sm_segment...) and removes them unless mpirun was killed. A file that no
// running process has mapped is stale; one that cannot be looked at (another user's) is left alone.
std::vector<std::string> stale_segments() {
  std::vector<std::string> names;
  for_each_entry("/dev/shm", [&](const fs::path& path) {
    const std::string name = path.filename();
    if (name.rfind("vader_segment", 0) == 0 || name.rfind("sm_segment", 0) == 0) names.push_back(path);
  });
  if (names.empty()) return names;
  for_each_entry("/proc", [&](const fs::path& process) {
    std::ifstream maps(process / "maps");
    for (std::string line; std::getline(maps, line);)
      std::erase_if(names, [&](const std::string& name) { return line.find(name) != std::string::npos; });
  });
  std::erase_if(names, [](const std::string& name) { return access(name.c_str(), W_OK) != 0; });
  return names;
}

int pci_gpus() {
  int count = 0;
  for_each_entry("/sys/bus/pci/devices", [&](const fs::path& device) {
    const bool display = first_word(device / "class").rfind("0x03", 0) == 0;
    if (display && first_word(device / "vendor") == "0x10de") ++count;
  });
  return count;
}

// NVML through dlopen: the doctor must also start where there is no driver.
int gpus_of_driver() {
  const std::unique_ptr<void, int (*)(void*)> library(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), [](void* p) { return p ? dlclose(p) : 0; });
  if (!library) return 0;
  const auto start = reinterpret_cast<int (*)()>(dlsym(library.get(), "nvmlInit_v2"));
  const auto count = reinterpret_cast<int (*)(unsigned*)>(dlsym(library.get(), "nvmlDeviceGetCount_v2"));
  const auto stop = reinterpret_cast<int (*)()>(dlsym(library.get(), "nvmlShutdown"));
  unsigned devices = 0;
  if (!start || !count || !stop || start() != 0) return 0;
  if (count(&devices) != 0) devices = 0;
  stop();
  return static_cast<int>(devices);
}

std::string mpi_cuda_aware() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() ? "yes" : "no";
#else
  return "unknown";
#endif
}

#ifdef MANYRANKS_HAVE_CUDA
void collect_cuda(NodeFacts& facts) {
  const auto text = [](long code) { return std::to_string(code / 1000) + "." + std::to_string(code / 10 % 100); };
  facts.torch_cuda = text(at::detail::getCUDAHooks().versionCUDART());  // that LibTorch was compiled with
  int code = 0;
  if (cudaDriverGetVersion(&code) == cudaSuccess && code > 0) facts.driver_cuda = text(code);
  const int count = static_cast<int>(torch::cuda::device_count());
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    facts.gpus.push_back({properties.name, std::to_string(properties.major) + "." + std::to_string(properties.minor), static_cast<int64_t>(properties.totalGlobalMem)});
    std::vector<int> reaches(count, 1);
    for (int j = 0; j < count; ++j)
      if (i != j && cudaDeviceCanAccessPeer(&reaches[j], i, j) != cudaSuccess) reaches[j] = 0;
    facts.peer_access.push_back(std::move(reaches));
  }
  cudaGetLastError();  // what was asked of a missing driver must not surface later
}
#else
void collect_cuda(NodeFacts&) {}
#endif

std::string probe(const std::string& address, const std::string& port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.c_str(), port.c_str(), &hints, &list) != 0) return "cannot resolve";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  for (const addrinfo* one = list; one; one = one->ai_next) {
    const int socket = ::socket(one->ai_family, one->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    bool connected = connect(socket, one->ai_addr, one->ai_addrlen) == 0;
    if (!connected && errno == EINPROGRESS) {
      pollfd wait{socket, POLLOUT, 0};
      int error = 0;
      socklen_t length = sizeof error;
      connected = poll(&wait, 1, /*milliseconds=*/1000) == 1 && getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
    }
    close(socket);
    if (connected) return "answers";
  }
  return "no answer";
}

void collect_master(NodeFacts& facts, const Process& process) {
  const auto address = environment_variable("MASTER_ADDR"), port = environment_variable("MASTER_PORT");
  if (!address || !port) return;
  facts.master = *address + ":" + *port;
  // Ranks that came by variables met there already; a second, mute connection would only confuse the store.
  const bool met_there = process.identity().source == Identity::Source::variables && process.world_size() > 1;
  facts.master_state = met_there ? "answers" : probe(*address, *port);
}

}  // namespace

NodeFacts collect(const Process& process) {
  NodeFacts facts;
  facts.host = process.host();
  facts.launcher = process.identity().launcher;
  facts.threads_per_rank = process.options().threads;
  facts.cores_of_rank = {allowed_cores()};
  facts.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.numa_of_core = numa_of_core();
  facts.cpu_model = cpu_model();
  const CpuFeatures cpu = probe_cpu();
  facts.instruction_sets = usable_instruction_sets(cpu);
  facts.amx_advertised = cpu.amx_advertised;
  facts.amx_usable = cpu.amx_usable;
  facts.onednn_max_isa = environment_variable("ONEDNN_MAX_CPU_ISA").value_or("");

  facts.memory_available = static_cast<int64_t>(available_memory());
  facts.memory_total = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) == 0) {
    facts.shared_memory_size = static_cast<int64_t>(shared.f_blocks * shared.f_frsize);
    facts.shared_memory_free = static_cast<int64_t>(shared.f_bavail * shared.f_frsize);
  }
  if (process.local_rank() == 0) facts.stale_segments = stale_segments();
  facts.memlock_limit = limit(RLIMIT_MEMLOCK);
  facts.stack_limit = limit(RLIMIT_STACK);
  for_each_entry("/sys/class/infiniband", [&](const fs::path&) { facts.has_rdma = true; });

  facts.mpi_version = mpi_version();
  facts.mpi_cuda_aware = mpi_cuda_aware();
  facts.nccl_header = nccl_header_version();
  facts.nccl_library = nccl_version();
  facts.driver = driver_version();
  facts.cuda_runtime = cuda_version();
  facts.torch_version = torch_version();
  facts.pci_gpus = pci_gpus();
  facts.driver_gpus = gpus_of_driver();
  collect_cuda(facts);
  collect_master(facts, process);
  return facts;
}

}  // namespace manyranks::doctor
