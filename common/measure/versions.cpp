#include "measure/versions.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include "launch/torch.hpp"
#include <torch/version.h>
#ifdef MANYRANKS_HAVE_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

#include <fstream>
#include <sstream>

namespace manyranks {

std::string torch_version() { return TORCH_VERSION; }

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);  // allowed before MPI_Init
  return short_mpi_version(std::string(text, static_cast<size_t>(length)));
}

std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::ostringstream text;
  text << file.rdbuf();
  return find_driver_version(text.str());
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "";
}

#ifdef MANYRANKS_HAVE_CUDA
std::string nccl_header_version() { return nccl_code_to_version(NCCL_VERSION_CODE); }
std::string nccl_version() {
  int code = 0;
  return ncclGetVersion(&code) == ncclSuccess ? nccl_code_to_version(code) : "";
}
std::string cuda_version() {
  int code = 0;
  return cudaRuntimeGetVersion(&code) == cudaSuccess ? fmt::format("{}.{}", code / 1000, code / 10 % 100) : "";
}
std::string gpu_name(int device) {
  return device < static_cast<int>(torch::cuda::device_count()) ? at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))->name : "";
}
#else
std::string nccl_header_version() { return ""; }
std::string nccl_version() { return ""; }
std::string cuda_version() { return ""; }
std::string gpu_name(int) { return ""; }
#endif

}  // namespace manyranks
