#include "measure/provenance.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>

#include "comm/communicator.hpp"  // Communicator
#include "launch/process.hpp"     // Process
#include "measure/versions.hpp"

namespace manyranks {

std::string run_id() {
  static const std::string id = [] {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
  }();
  return id;
}

std::string utc_date() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

void fill(Row& row, const Process& process) {
  const std::string& name = process.options().name();
  const auto slash = name.find('/');
  row.set("chapter", slash == std::string::npos ? "" : name.substr(0, slash));
  row.set("lesson", slash == std::string::npos ? name : name.substr(slash + 1));
  const bool on_gpu = process.device().is_cuda();
  row.set("device", on_gpu ? "cuda" : "cpu");
  if (on_gpu) row.set("gpu", gpu_name(process.device().index())).set("nccl", nccl_version()).set("driver", driver_version());
  row.set("nodes", process.nodes()).set("ranks", process.world_size()).set("threads", process.options().threads);
  row.set("oversubscribed", process.oversubscribed());
  row.set("run_id", run_id()).set("commit", build_commit()).set("dirty", build_dirty());
  row.set("torch", torch_version());
  if (process.has_mpi()) row.set("mpi", mpi_version());
  row.set("date", utc_date()).set("host", process.host());
}

void fill(Row& row, const Communicator& communicator) {
  row.set("backend", communicator.backend()).set("transport", communicator.transport());
}

void fill(Row& row, const Timing& timing) {
  row.set("iterations", timing.samples.size()).set("median_s", timing.median).set("p95_s", timing.p95);
}

void write_row(const Process& process, Row row) {
  if (!process.is_root() || process.options().csv.empty()) return;
  fill(row, process);
  CsvWriter(process.options().csv).append(row);
}

void write_samples(const Process& process, const std::string& variant, const std::vector<double>& samples) {
  const std::string& path = process.options().samples;
  if (!process.is_root() || path.empty()) return;
  const bool fresh = !std::filesystem::exists(path) || std::filesystem::file_size(path) == 0;
  std::ofstream file(path, std::ios::app);
  if (fresh) file << "run_id,lesson,variant,step,seconds\n";
  for (size_t step = 0; step < samples.size(); ++step)
    file << fmt::format("{},{},{},{},{}\n", run_id(), csv_quote(process.options().name()), csv_quote(variant), step, samples[step]);
  file.close();
  if (!file) throw io_error("writing " + path, std::strerror(errno));
}

}  // namespace manyranks
