#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "measure/monitor.hpp"

namespace manyranks {
namespace {

struct CpuTimes {
  double busy = 0, total = 0;     // of all cores, in ticks
  double process = 0, cores = 0;  // of this process, in ticks
};

class CpuProbe : public Probe {
 public:
  explicit CpuProbe(std::string proc) : proc_(std::move(proc)) {}
  std::string name() const override { return "/proc"; }

  void fill(MonitorSample& sample) override {
    const std::optional<CpuTimes> times = read_times();
    if (times && before_ && times->total > before_->total) {
      const double elapsed = times->total - before_->total;
      sample.cpu_percent = 100.0 * (times->busy - before_->busy) / elapsed;
      sample.process_percent = 100.0 * (times->process - before_->process) * times->cores / elapsed;
    }
    // Two calls within one tick have no difference to divide by: keep the older for the next.
    if (times && (!before_ || times->total > before_->total)) before_ = times;
    double pages = 0, resident = 0;
    if (std::ifstream(proc_ + "/self/statm") >> pages >> resident) sample.process_bytes = resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
  }

 private:
  std::optional<CpuTimes> read_times() const {
    CpuTimes times;
    std::ifstream machine(proc_ + "/stat");
    std::string line;
    while (std::getline(machine, line) && line.starts_with("cpu")) {
      if (line[3] != ' ') {
        times.cores += 1;
        continue;
      }
      std::istringstream fields(line.substr(4));
      double value = 0;
      for (int i = 0; i < 8 && fields >> value; ++i) {  // user nice system idle iowait irq softirq steal; guest is part of user
        times.total += value;
        if (i != 3 && i != 4) times.busy += value;
      }
    }
    std::ifstream process(proc_ + "/self/stat");
    if (!std::getline(process, line)) return std::nullopt;
    const size_t name_end = line.rfind(')');  // the name may hold blanks and parentheses
    if (name_end == std::string::npos || times.cores == 0) return std::nullopt;
    std::istringstream fields(line.substr(name_end + 1));
    std::string field;
    for (int i = 0; i < 13 && fields >> field; ++i) {  // state is field 0; user and system time are 11 and 12
      if (i >= 11) times.process += std::strtod(field.c_str(), nullptr);
    }
    return times;
  }

  std::string proc_;
  std::optional<CpuTimes> before_;
};

// The few declarations of nvml.h that are needed here.
struct NvmlDevice;
struct NvmlUtilization {
  unsigned gpu, memory;
};
struct NvmlMemory {
  unsigned long long total, free, used;
};

class NvmlProbe : public Probe {
 public:
  static std::unique_ptr<Probe> open(const std::string& device, const std::string& library, std::string& why) {
    auto probe = std::unique_ptr<NvmlProbe>(new NvmlProbe);
    why = probe->start(device, library);
    return why.empty() ? std::move(probe) : nullptr;
  }
  ~NvmlProbe() override {
    if (started_) shutdown_();
    if (library_ != nullptr) ::dlclose(library_);
  }
  std::string name() const override { return name_; }

  void fill(MonitorSample& sample) override {  // what a device does not support stays unmeasured
    NvmlUtilization utilization{};
    if (utilization_(device_, &utilization) == 0) sample.gpu_percent = utilization.gpu;
    NvmlMemory memory{};
    if (memory_(device_, &memory) == 0) sample.gpu_bytes = static_cast<double>(memory.used);
    unsigned milliwatts = 0;
    if (power_(device_, &milliwatts) == 0) sample.gpu_watts = milliwatts / 1000.0;
  }

 private:
  NvmlProbe() = default;

  template <class Function>
  bool find(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(::dlsym(library_, symbol));
    return function != nullptr;
  }

  std::string start(const std::string& device, const std::string& library) {  // empty: good
    library_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return "no NVML: " + std::string(::dlerror());
    int (*init)() = nullptr;
    int (*by_index)(unsigned, NvmlDevice**) = nullptr;
    int (*by_pci)(const char*, NvmlDevice**) = nullptr;
    int (*get_name)(NvmlDevice*, char*, unsigned) = nullptr;
    if (!find(init, "nvmlInit_v2") || !find(shutdown_, "nvmlShutdown") || !find(by_index, "nvmlDeviceGetHandleByIndex_v2") ||
        !find(by_pci, "nvmlDeviceGetHandleByPciBusId_v2") || !find(get_name, "nvmlDeviceGetName") ||
        !find(utilization_, "nvmlDeviceGetUtilizationRates") || !find(memory_, "nvmlDeviceGetMemoryInfo") ||
        !find(power_, "nvmlDeviceGetPowerUsage")) {
      return library + " lacks a function that is needed";
    }
    if (const int code = init(); code != 0) return "nvmlInit failed with " + std::to_string(code);
    started_ = true;
    const bool is_pci = device.find(':') != std::string::npos;
    if (!is_pci && (device.empty() || device.find_first_not_of("0123456789") != std::string::npos)) return "'" + device + "' is no device";
    const int code = is_pci ? by_pci(device.c_str(), &device_) : by_index(static_cast<unsigned>(std::atoi(device.c_str())), &device_);
    if (code != 0) return "NVML has no device " + device + " (" + std::to_string(code) + ")";
    char text[96] = "";
    get_name(device_, text, sizeof(text));
    name_ = "NVML (" + std::string(text) + ")";
    return "";
  }

  void* library_ = nullptr;
  bool started_ = false;
  NvmlDevice* device_ = nullptr;
  std::string name_;
  int (*shutdown_)() = nullptr;
  int (*utilization_)(NvmlDevice*, NvmlUtilization*) = nullptr;
  int (*memory_)(NvmlDevice*, NvmlMemory*) = nullptr;
  int (*power_)(NvmlDevice*, unsigned*) = nullptr;
};

}  // namespace

std::unique_ptr<Probe> cpu_probe(const std::string& proc) { return std::make_unique<CpuProbe>(proc); }

std::unique_ptr<Probe> nvml_probe(const std::string& device, std::string* why, const std::string& library) {
  std::string reason;
  auto probe = NvmlProbe::open(device, library, reason);
  if (why != nullptr) *why = reason;
  return probe;
}

}  // namespace manyranks
