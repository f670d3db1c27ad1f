// Any bytes as a shard: an index whose every sample lies inside the file, or a data_error.
#include <cstdlib>

#include "data/shards.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  try {
    const auto index = manyranks::parse_shard({bytes, size}, size, "fuzz");
    for (const auto& entry : index.entries)
      if (entry.offset > size || entry.bytes > size - entry.offset || entry.label >= index.classes) std::abort();
  } catch (const manyranks::Error& error) {
    if (error.code != manyranks::Exit::data) std::abort();
  }
  return 0;
}
