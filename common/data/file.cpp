#include "data/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace manyranks {

Error bad_file(const std::string& file, std::uint64_t offset, const std::string& cause, const std::string& hint) {
  return data_error("read " + file, fmt::format("at byte {}: {}", offset, cause), hint);
}

namespace {
Error unreadable(const std::string& file, std::uint64_t offset, int code) {
  return data_error("read " + file, fmt::format("at byte {}: {}", offset, std::strerror(code)),
                  "check that the file is there and that you may read it");
}
}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()) {
  descriptor_ = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw unreadable(name_, 0, errno);
  struct stat status {};
  int code = ::fstat(descriptor_, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : S_ISREG(status.st_mode) ? 0 : EINVAL;
  if (code != 0) {
    ::close(descriptor_);
    throw unreadable(name_, 0, code);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : name_(std::move(other.name_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

void InputFile::read_at(std::uint64_t offset, void* out, std::size_t bytes) const {
  auto* target = static_cast<char*>(out);
  while (bytes > 0) {
    ssize_t got = ::pread(descriptor_, target, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw unreadable(name_, offset, errno);
    if (got == 0) throw bad_file(name_, offset, fmt::format("the file ends, {} more bytes expected", bytes), "the file is truncated: fetch it again");
    target += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

void InputFile::will_need(std::uint64_t offset, std::uint64_t bytes) const {
  ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

void read_file(const std::filesystem::path& path, Bytes& out) {
  InputFile file(path);
  out.resize(file.size());
  file.read_at(0, out.data(), out.size());
}

bool is_gzip(ByteView bytes) { return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b; }

Bytes gunzip(ByteView packed, std::uint64_t at_most, const std::string& file) {
  if (at_most > packed.size() * 1032 + 64)
    throw bad_file(file, 0, fmt::format("{} packed bytes cannot hold the {} that the header claims", packed.size(), at_most - 1));
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) throw bad_file(file, 0, "zlib could not start");  // +16: gzip framing only
  struct End {
    z_stream* stream;
    ~End() { inflateEnd(stream); }
  } end{&stream};

  Bytes out(at_most);
  std::size_t read = 0, written = 0;
  while (written < out.size()) {
    // avail_* are 32-bit: feed and drain in pieces of at most 1 GiB.
    constexpr std::size_t piece = std::size_t{1} << 30;
    stream.next_in = const_cast<std::uint8_t*>(packed.data()) + read;
    stream.next_out = out.data() + written;
    stream.avail_in = static_cast<uInt>(std::min(packed.size() - read, piece));
    stream.avail_out = static_cast<uInt>(std::min(out.size() - written, piece));
    const int code = inflate(&stream, Z_NO_FLUSH);
    read = static_cast<std::size_t>(stream.next_in - packed.data());
    written = static_cast<std::size_t>(stream.next_out - out.data());
    if (code == Z_STREAM_END) break;
    if (code == Z_BUF_ERROR || (code == Z_OK && read == packed.size() && written < out.size()))
      throw bad_file(file, packed.size(), "the gzip data ends early", "the file is truncated: fetch it again");
    if (code != Z_OK) throw bad_file(file, read, fmt::format("broken gzip data ({})", stream.msg ? stream.msg : "no detail"));
  }
  out.resize(written);
  return out;
}

}  // namespace manyranks
