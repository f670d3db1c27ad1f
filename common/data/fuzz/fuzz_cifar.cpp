// Any bytes as a CIFAR-10 file: all records readable with labels in range, or a data_error.
#include <cstdlib>

#include "data/cifar.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  try {
    std::uint8_t pixels[3 * manyranks::cifar_plane];
    const std::size_t records = manyranks::check_cifar({bytes, size}, "fuzz");
    for (std::size_t i = 0; i < records; ++i)
      if (manyranks::read_cifar({bytes, size}, i, pixels) > 9) std::abort();
  } catch (const manyranks::Error& error) {
    if (error.code != manyranks::Exit::data) std::abort();
  }
  return 0;
}

// Nearly all lengths are wrong: stretch half of the inputs to whole records, so that labels are reached too.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* bytes, std::size_t size, std::size_t max_size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* bytes, std::size_t size, std::size_t max_size, unsigned seed) {
  size = LLVMFuzzerMutate(bytes, size, max_size);
  if (seed % 2 == 0 || max_size < manyranks::cifar_record) return size;
  const std::size_t whole = manyranks::cifar_record * (1 + seed / 2 % (max_size / manyranks::cifar_record));
  for (std::size_t i = size; i < whole; ++i) bytes[i] = static_cast<std::uint8_t>(seed >> (i % 8));
  return whole;
}
