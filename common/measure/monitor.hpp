// What the machine does while a program runs, sampled by a background thread: CPU load always, the GPU through NVML where there
// is one. NVML is opened at run time: a machine without a driver needs neither the library nor its header.
//
//   Monitor monitor(0.5, standard_probes("0"));
//   ... train ...
//   monitor.stop();
//   fmt::print("{}\n", monitor.summary());
//   monitor.write_csv("monitor.csv");
#pragma once

#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace manyranks {

constexpr double not_measured = std::numeric_limits<double>::quiet_NaN();

struct MonitorSample {
  double time_s = 0;                        // since the monitor started
  double cpu_percent = not_measured;        // the whole machine: 100 is all cores busy
  double process_percent = not_measured;    // this process: 100 is one core busy
  double process_bytes = not_measured;      // resident
  double gpu_percent = not_measured;        // share of the last period in which a kernel ran; not how full the device was
  double gpu_bytes = not_measured;          // used on the device, by everybody
  double gpu_watts = not_measured;
};

class Probe {
 public:
  virtual ~Probe() = default;
  virtual void fill(MonitorSample& sample) = 0;  // leaves what it does not know
  virtual std::string name() const = 0;
};

// From /proc, or from files like it in a test. Loads are averages since the call before; the first call has none.
std::unique_ptr<Probe> cpu_probe(const std::string& proc = "/proc");

// `device` is NVML's index ("0") or a PCI bus id ("0000:65:00.0": NVML does not know CUDA_VISIBLE_DEVICES). If there is no such
// library or device the result is null, and `why` says so.
std::unique_ptr<Probe> nvml_probe(const std::string& device, std::string* why = nullptr, const std::string& library = "libnvidia-ml.so.1");

// The CPU, and the GPU unless `gpu` is empty or absent.
std::vector<std::unique_ptr<Probe>> standard_probes(const std::string& gpu);

class Monitor {
 public:
  Monitor(double interval_s, std::vector<std::unique_ptr<Probe>> probes);
  ~Monitor();  // stops
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  void stop();  // takes a last sample, so that a short run has one; again: nothing
  std::vector<MonitorSample> samples() const;

  struct Statistics {
    int count = 0;  // samples in which it was measured
    double mean = 0, max = 0;
  };
  Statistics statistics(double MonitorSample::*column) const;

  // "cpu 93% (max 100%), process 187% (max 199%), 1.2 GiB (max 1.3), gpu 71% ..., by /proc, NVML (NAME)"
  std::string summary() const;
  void write_csv(const std::string& path) const;  // empty cells where nothing was measured

 private:
  void run(double interval_s);
  void take_sample();

  std::vector<std::unique_ptr<Probe>> probes_;
  double start_s_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<MonitorSample> samples_;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace manyranks
