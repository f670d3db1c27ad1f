// What this CPU can really do, and the one instruction set that it may only pretend to have.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace manyranks {

struct CpuFeatures {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, avx512_fp16 = false;
  bool amx_advertised = false;  // CPUID leaf 7 says AMX-TILE
  bool amx_usable = false;      // and leaf 0x1D describes a tile palette
};

CpuFeatures probe_cpu();

// Virtual machines often pass on the AMX bit without the tile palette: the first bf16 matrix product of oneDNN then
// dies with SIGILL. Returns the value that ONEDNN_MAX_CPU_ISA needs, or nothing if AMX is absent or sound.
std::optional<std::string> onednn_cap(const CpuFeatures& features);

// Sets ONEDNN_MAX_CPU_ISA before LibTorch first asks for it, unless the user set it. Returns what it did, for people.
std::string make_cpu_safe();

// Names of the usable instruction sets, for the doctor.
std::vector<std::string> usable_instruction_sets(const CpuFeatures& features);

}  // namespace manyranks
