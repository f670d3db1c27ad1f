#include "measure/monitor.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Field {
  const char* name;
  double MonitorSample::*value;
};
constexpr Field fields[] = {{"time_s", &MonitorSample::time_s},
                            {"cpu_percent", &MonitorSample::cpu_percent},
                            {"process_percent", &MonitorSample::process_percent},
                            {"process_bytes", &MonitorSample::process_bytes},
                            {"gpu_percent", &MonitorSample::gpu_percent},
                            {"gpu_bytes", &MonitorSample::gpu_bytes},
                            {"gpu_watts", &MonitorSample::gpu_watts}};

}  // namespace

std::vector<std::unique_ptr<Probe>> standard_probes(const std::string& gpu) {
  std::vector<std::unique_ptr<Probe>> probes;
  probes.push_back(cpu_probe());
  if (!gpu.empty()) {
    if (auto probe = nvml_probe(gpu)) probes.push_back(std::move(probe));
  }
  return probes;
}

DeviceMonitor::DeviceMonitor(double interval_s, std::vector<std::unique_ptr<Probe>> probes) : probes_(std::move(probes)), start_s_(now_s()) {
  if (!(interval_s > 0)) throw usage_error("monitor", "the interval must be positive");
  MonitorSample unused;  // loads are differences: this is what the first sample is compared with
  for (const auto& probe : probes_) probe->fill(unused);
  thread_ = std::thread([this, interval_s] { run(interval_s); });
}

DeviceMonitor::~DeviceMonitor() { stop(); }

void DeviceMonitor::run(double interval_s) {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::duration<double>(interval_s), [this] { return stopping_; })) {
    lock.unlock();  // a slow driver must not hold up samples()
    take_sample();
    lock.lock();
  }
}

void DeviceMonitor::take_sample() {
  MonitorSample sample;
  sample.time_s = now_s() - start_s_;
  for (const auto& probe : probes_) probe->fill(sample);
  const std::lock_guard lock(mutex_);
  samples_.push_back(sample);
}

void DeviceMonitor::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  take_sample();
}

std::vector<MonitorSample> DeviceMonitor::samples() const {
  const std::lock_guard lock(mutex_);
  return samples_;
}

DeviceMonitor::Statistics DeviceMonitor::statistics(double MonitorSample::*column) const {
  Statistics result;
  for (const MonitorSample& sample : samples()) {
    const double value = sample.*column;
    if (std::isnan(value)) continue;
    result.max = result.count == 0 ? value : std::max(result.max, value);
    result.mean += (value - result.mean) / ++result.count;
  }
  return result;
}

std::string DeviceMonitor::summary() const {
  struct Part {
    const char* label;
    double MonitorSample::*column;
    double unit;
    const char* unit_name;
  };
  constexpr double gib = 1024.0 * 1024.0 * 1024.0;
  constexpr Part parts[] = {{"cpu", &MonitorSample::cpu_percent, 1, "%"},          {"process", &MonitorSample::process_percent, 1, "%"},
                            {"memory", &MonitorSample::process_bytes, gib, " GiB"}, {"gpu", &MonitorSample::gpu_percent, 1, "%"},
                            {"gpu memory", &MonitorSample::gpu_bytes, gib, " GiB"}, {"power", &MonitorSample::gpu_watts, 1, " W"}};
  std::string text;
  for (const Part& part : parts) {
    const Statistics found = statistics(part.column);
    if (found.count == 0) continue;
    text += fmt::format("{} {:.3g}{} (max {:.3g}), ", part.label, found.mean / part.unit, part.unit_name, found.max / part.unit);
  }
  std::string names;
  for (const auto& probe : probes_) names += (names.empty() ? " " : ", ") + probe->name();
  return text + fmt::format("{} samples by{}", samples().size(), names);
}

void DeviceMonitor::write_csv(const std::string& path) const {
  std::ofstream file(path);
  std::string line;
  for (const Field& field : fields) line += fmt::format("{}{}", line.empty() ? "" : ",", field.name);
  file << line << '\n';
  for (const MonitorSample& sample : samples()) {
    bool first = true;
    for (const Field& field : fields) {
      const double value = sample.*field.value;
      file << (first ? "" : ",") << (std::isnan(value) ? "" : fmt::format("{:.10g}", value));
      first = false;
    }
    file << '\n';
  }
  if (!file.flush()) throw io_error("monitor " + path, "writing failed");
}

}  // namespace manyranks
