// libFuzzer: any bytes are either a sound file, whose tensors lie inside it, or a data error. Nothing else.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "launch/errors.hpp"
#include "train/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace manyranks;
  try {
    const safetensors::Header header = safetensors::parse(std::span(data, size), "fuzz");
    uint64_t covered = header.data_offset;
    for (const safetensors::Entry& entry : header.entries) {
      if (entry.begin > entry.end || header.data_offset + entry.end > size) std::abort();
      covered += entry.end - entry.begin;
    }
    if (covered != size) std::abort();
  } catch (const Error& error) {
    if (error.code != Exit::data) std::abort();
  }
  return 0;
}
