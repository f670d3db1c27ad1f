// The safetensors file format, without LibTorch: 8 bytes with the length of the header (little-endian), the header in JSON,
// then the tensors' bytes one behind the other.
//
//   {"__metadata__": {"step": "12"}, "fc1.weight": {"dtype": "F32", "shape": [128, 784], "data_offsets": [0, 401408]}, ...}
//
// A file from elsewhere is not trusted: every length is checked against the file before anything is allocated, products
// against overflow, and the tensors must cover the data exactly, with no hole and no overlap. What is wrong is a data
// error (exit 65) naming the file and the offset.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace manyranks::safetensors {

constexpr uint64_t max_header_bytes = 100'000'000;  // as the reference implementation
constexpr size_t max_dimensions = 64;

struct Entry {
  std::string name;
  std::string dtype;           // BOOL U8 I8 F8_E4M3 F8_E5M2 I16 U16 F16 BF16 I32 U32 F32 I64 U64 F64
  std::vector<int64_t> shape;  // empty: a scalar
  uint64_t begin = 0, end = 0;  // in the data, which starts at Header::data_offset
};

using Metadata = std::map<std::string, std::string>;

struct Header {
  std::vector<Entry> entries;  // in the order of their bytes
  Metadata metadata;
  uint64_t data_offset = 0;
};

uint64_t dtype_bytes(std::string_view dtype);  // 0: unknown

// The length that the first 8 bytes give, checked against the file's size. `file` is for messages.
uint64_t parse_header_length(std::span<const uint8_t> first_bytes, uint64_t file_size, const std::string& file);
// The JSON behind them.
Header parse_header(std::string_view json, uint64_t file_size, const std::string& file);
// Both, for a file that is in memory.
Header parse(std::span<const uint8_t> bytes, const std::string& file);

// An open file. Tensors are read one by one into the caller's memory: nothing is held twice.
class Reader {
 public:
  explicit Reader(const std::string& path);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const Header& header() const { return header_; }
  const Entry* find(std::string_view name) const;  // nullptr: not there
  void read(const Entry& entry, void* to) const;   // entry.end - entry.begin bytes

 private:
  void read_at(uint64_t offset, void* to, uint64_t count) const;

  std::string path_;
  int descriptor_ = -1;
  Header header_;
};

struct Source {
  std::string name, dtype;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

// All or nothing: writes PATH.tmp.RANDOM, flushes it to the disk and renames it. Whatever interrupts it, PATH is the old file
// or the new one. Throws an input/output error (exit 74).
void save(const std::string& path, const std::vector<Source>& tensors, const Metadata& metadata = {});

}  // namespace manyranks::safetensors
