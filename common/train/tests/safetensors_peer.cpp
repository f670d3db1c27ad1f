// The C++ half of safetensors_python.py.
//   safetensors_peer write FILE    the fixed set of tensors that the script expects
//   safetensors_peer list FILE     NAME DTYPE [SHAPE] CHECKSUM per tensor, KEY=VALUE per metadata entry; a bad file gives its exit code
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "launch/errors.hpp"
#include "train/safetensors.hpp"

namespace {

using namespace manyranks;

void write(const std::string& path) {
  std::vector<float> floats(6);
  std::iota(floats.begin(), floats.end(), -2.5F);
  const std::vector<double> doubles = {3.141592653589793, -1e300};
  const std::vector<int64_t> longs = {INT64_MIN, 0, INT64_MAX};
  const std::vector<uint8_t> bytes = {0, 1, 255};
  const std::vector<uint16_t> halves = {0x3C00, 0xC000};  // 1, -2
  const std::vector<uint8_t> flags = {1, 0};
  const int64_t scalar = 42;
  safetensors::save(path,
                    {{"bytes", "U8", {3}, bytes.data()}, {"flags", "BOOL", {2}, flags.data()}, {"layer.weight", "F32", {2, 3}, floats.data()},
                     {"doubles", "F64", {2}, doubles.data()}, {"longs", "I64", {3, 1}, longs.data()}, {"halves", "F16", {2}, halves.data()},
                     {"scalar", "I64", {}, &scalar}, {"empty", "F32", {0, 4}, nullptr}},
                    {{"step", "12"}, {"note", "quote \" and \xC3\xA9"}});
}

void list(const std::string& path) {
  const safetensors::Reader reader(path);
  for (const auto& entry : reader.header().entries) {
    std::vector<uint8_t> data(entry.end - entry.begin);
    reader.read(entry, data.data());
    uint64_t checksum = 14695981039346656037ULL;  // FNV-1a
    for (const uint8_t byte : data) checksum = (checksum ^ byte) * 1099511628211ULL;
    fmt::print("{} {} [{}] {:016x}\n", entry.name, entry.dtype, fmt::join(entry.shape, ","), checksum);
  }
  for (const auto& [key, value] : reader.header().metadata) fmt::print("{}={}\n", key, value);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::strcmp(argv[1], "write") == 0) return write(argv[2]), 0;
    if (argc == 3 && std::strcmp(argv[1], "list") == 0) return list(argv[2]), 0;
    return 64;
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", error.operation, error.cause);
    return static_cast<int>(error.code);
  }
}
