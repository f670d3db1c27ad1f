// Writing: a file that a reader can open at any moment is either the old one or the new one.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "launch/errors.hpp"
#include "train/safetensors.hpp"

namespace manyranks::safetensors {
namespace {

// Removes what it wrote unless commit() made it the file.
class TemporaryFile {
 public:
  // A name that nobody can guess, and a file that was not there before: whoever else may write in this folder cannot put a link in
  // its place. The umask decides who may read it, as for any other file (mkstemp would make it 0600).
  explicit TemporaryFile(const std::string& target) : target_(target) {
    std::random_device random;
    for (int attempt = 0; attempt < 100; ++attempt) {
      char suffix[24];
      std::snprintf(suffix, sizeof suffix, ".tmp.%08x%08x", random(), random());
      path_ = target + suffix;
      descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
      if (descriptor_ >= 0) return;
      if (errno != EEXIST) break;
    }
    fail("open");
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!committed_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(const void* data, uint64_t count) {
    const auto* next = static_cast<const char*>(data);
    while (count > 0) {
      const ssize_t done = ::write(descriptor_, next, count);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail("write");
      next += done;
      count -= static_cast<uint64_t>(done);
    }
  }

  // Bytes first, then the name, then the folder that holds the name: a power cut between any two leaves the old file.
  void commit() {
    if (::fsync(descriptor_) != 0) fail("fsync");
    const int closing = descriptor_;
    descriptor_ = -1;
    if (::close(closing) != 0) fail("close");
    if (std::rename(path_.c_str(), target_.c_str()) != 0) fail("rename");
    committed_ = true;
    const std::filesystem::path folder = std::filesystem::path(target_).parent_path();
    const int handle = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return;  // a folder that may not be read can still be written: the file is whole either way
    ::fsync(handle);
    ::close(handle);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw io_error("save " + target_, std::string(what) + ": " + std::strerror(errno), "free space, quota and permissions of the folder");
  }

  std::string target_, path_;
  int descriptor_ = -1;
  bool committed_ = false;
};

uint64_t bytes_of(const Source& tensor) {
  uint64_t bytes = dtype_bytes(tensor.dtype);
  if (bytes == 0) throw usage_error("save tensor " + tensor.name, "safetensors has no dtype " + tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

}  // namespace

void save(const std::string& path, const std::vector<Source>& tensors, const Metadata& metadata) {
  // Widest types first, so that every tensor is aligned to its type behind a header padded to 8 bytes.
  std::vector<const Source*> order;
  for (const Source& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const Source* a, const Source* b) { return dtype_bytes(a->dtype) > dtype_bytes(b->dtype); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const Source* tensor : order) {
    if (tensor->name == "__metadata__") throw usage_error("save " + path, "__metadata__ is not a name for a tensor");
    if (header.contains(tensor->name)) throw usage_error("save " + path, "two tensors are named " + tensor->name);
    const uint64_t end = offset + bytes_of(*tensor);
    header.push_back({tensor->name, {{"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {offset, end}}}});
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > max_header_bytes) throw usage_error("save " + path, "too many tensors for one header");

  TemporaryFile file(path);
  uint8_t length[8];
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(static_cast<uint64_t>(text.size()) >> (8 * i));
  file.write(length, sizeof(length));
  file.write(text.data(), text.size());
  for (const Source* tensor : order) file.write(tensor->data, bytes_of(*tensor));
  file.commit();
}

}  // namespace manyranks::safetensors
