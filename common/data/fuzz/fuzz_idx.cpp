// Any bytes as an IDX file: parsed to exactly what the header says, or a data_error.
#include <cstdlib>

#include "data/idx.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  for (int dimensions : {1, 3}) {
    try {
      const auto array = manyranks::parse_idx({bytes, size}, dimensions, "fuzz");
      std::uint64_t product = 1;
      for (auto n : array.sizes) product *= n;
      if (product != array.values.size()) std::abort();
    } catch (const manyranks::Error& error) {
      if (error.code != manyranks::Exit::data) std::abort();
    }
  }
  return 0;
}
