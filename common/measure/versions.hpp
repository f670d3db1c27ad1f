// Which versions are at work, asked of the libraries that were really loaded. Empty: not there.
#pragma once

#include <string>

namespace manyranks {

std::string torch_version();    // "2.14.1"
std::string mpi_version();      // "Open MPI 4.1.4"
std::string nccl_version();     // "2.30.7"; of the library
std::string nccl_header_version();  // of the header that we were compiled with
std::string driver_version();   // "580.65.06"
std::string cuda_version();     // of the runtime: "13.0"
std::string cpu_model();
std::string gpu_name(int device);

// Pure parts.
std::string short_mpi_version(const std::string& library_version);  // from MPI_Get_library_version's long text
std::string nccl_code_to_version(int code);                         // 23007 -> "2.30.7"
std::string find_driver_version(const std::string& proc_text);      // from /proc/driver/nvidia/version

}  // namespace manyranks
