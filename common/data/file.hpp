// Reading files that may be anything: every failure names the file and the byte where it went wrong.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "launch/errors.hpp"  // Error

namespace manyranks {

using Bytes = std::vector<std::uint8_t>;
using ByteView = std::span<const std::uint8_t>;

// "read FILE: at byte OFFSET: CAUSE", exit 65.
Error bad_file(const std::string& file, std::uint64_t offset, const std::string& cause, const std::string& hint = "");

// An open regular file. read_at() is a pread: threads share one InputFile with no lock.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);  // data_error if it cannot be opened
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  InputFile& operator=(InputFile&&) = delete;

  std::uint64_t size() const { return size_; }
  const std::string& name() const { return name_; }
  void read_at(std::uint64_t offset, void* out, std::size_t bytes) const;  // data_error if the file ends before
  void will_need(std::uint64_t offset, std::uint64_t bytes) const;         // asks the kernel to read ahead

 private:
  std::string name_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// The whole file, into `out`, whose capacity is reused. The file's own size bounds the allocation.
void read_file(const std::filesystem::path& path, Bytes& out);

// Unpacks gzip, stopping after `at_most` bytes; where the stream ends before, its checksum has been verified.
// deflate cannot shrink data more than 1032-fold: a larger `at_most` than that is refused before it is allocated.
Bytes gunzip(ByteView packed, std::uint64_t at_most, const std::string& file);
bool is_gzip(ByteView bytes);

}  // namespace manyranks
