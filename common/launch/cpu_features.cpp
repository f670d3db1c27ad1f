#include "launch/cpu_features.hpp"

#include <cstdlib>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace manyranks {

CpuFeatures probe_cpu() {
  CpuFeatures f;
#if defined(__x86_64__)
  __builtin_cpu_init();
  f.avx2 = __builtin_cpu_supports("avx2");
  f.avx512 = __builtin_cpu_supports("avx512f");
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    f.amx_advertised = d & (1u << 24);             // AMX-TILE
    f.avx512_fp16 = f.avx512 && (d & (1u << 23));
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) f.avx512_bf16 = f.avx512 && (a & (1u << 5));
  // Leaf 0x1D: the highest palette, then the bytes of palette 1's tiles. All zero: nothing can be configured.
  if (f.amx_advertised && __get_cpuid_max(0, nullptr) >= 0x1D) {
    __cpuid_count(0x1D, 0, a, b, c, d);
    const unsigned highest_palette = a;
    __cpuid_count(0x1D, 1, a, b, c, d);
    f.amx_usable = highest_palette >= 1 && (a & 0xffff) != 0;
  }
#endif
  return f;
}

std::optional<std::string> onednn_cap(const CpuFeatures& f) {
  if (!f.amx_advertised || f.amx_usable) return std::nullopt;
  if (f.avx512_fp16) return "AVX512_CORE_FP16";
  if (f.avx512_bf16) return "AVX512_CORE_BF16";
  return f.avx512 ? "AVX512_CORE" : "AVX2";
}

std::string make_cpu_safe() {
  const auto features = probe_cpu();
  if (const char* given = std::getenv("ONEDNN_MAX_CPU_ISA")) return std::string("ONEDNN_MAX_CPU_ISA=") + given + " (given)";
  const auto cap = onednn_cap(features);
  if (!cap) return features.amx_usable ? "AMX usable" : "no AMX, nothing to cap";
  setenv("ONEDNN_MAX_CPU_ISA", cap->c_str(), 0);
  return "AMX advertised but without a tile palette: ONEDNN_MAX_CPU_ISA=" + *cap;
}

std::vector<std::string> usable_instruction_sets(const CpuFeatures& f) {
  std::vector<std::string> names;
  if (f.avx2) names.push_back("avx2");
  if (f.avx512) names.push_back("avx512");
  if (f.avx512_bf16) names.push_back("avx512_bf16");
  if (f.avx512_fp16) names.push_back("avx512_fp16");
  if (f.amx_usable) names.push_back("amx");
  return names;
}

}  // namespace manyranks
