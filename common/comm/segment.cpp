#include "comm/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <sstream>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

constexpr size_t header = 4096;  // holds the nonce; keeps the data page-aligned

// Ranks that are threads of one process (unit tests) must share one mapping: two would hide data races from ThreadSanitizer.
struct OpenSegments {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<Segment>> by_nonce;
};
OpenSegments& open_segments() {
  static OpenSegments segments;
  return segments;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return text;
}

size_t number_or(const std::string& text, size_t otherwise) {
  try {
    return std::stoull(text);
  } catch (const std::exception&) {
    return otherwise;  // "max", or no such file
  }
}

}  // namespace

size_t available_memory() {
  constexpr size_t unlimited = std::numeric_limits<size_t>::max();
  size_t available = unlimited;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("MemAvailable:", 0) == 0) available = number_or(line.substr(13), unlimited / 1024) * 1024;
  for (const auto& [limit, used] : {std::pair{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
                                    std::pair{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const size_t most = number_or(file_text(limit), unlimited), now = number_or(file_text(used), 0);
    if (most != unlimited) available = std::min(available, most > now ? most - now : 0);
  }
  return available;
}

std::string host_identity() {
  char name[256] = "", space[64] = "";
  gethostname(name, sizeof name - 1);
  const ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return fmt::format("{} {} {}", name, file_text("/proc/sys/kernel/random/boot_id"), std::string(space, length > 0 ? length : 0));
}

std::shared_ptr<Segment> Segment::create(size_t bytes, const std::string& purpose, size_t at_once) {
  const size_t total = bytes + header, now = at_once + header;
  const auto fail = [&](const std::string& cause) -> Error {
    return unavailable_error("shared memory for " + purpose, cause, "fewer ranks, smaller tensors, or a larger memory limit");
  };
  if (const size_t free = available_memory(); now > free)
    throw fail(fmt::format("{} bytes are needed, {} are available on this host", now, free));
  const int file = memfd_create("manyranks", MFD_CLOEXEC);
  if (file < 0) throw fail(fmt::format("memfd_create: {}", std::strerror(errno)));
  if (ftruncate(file, static_cast<off_t>(total)) != 0 || fallocate(file, 0, 0, static_cast<off_t>(now)) != 0) {
    const std::string cause = fmt::format("{} bytes: {}", now, std::strerror(errno));
    close(file);
    throw fail(cause);
  }
  std::random_device random;
  const uint64_t nonce = (static_cast<uint64_t>(random()) << 32 | random()) | 1;
  std::shared_ptr<Segment> segment(new Segment(file, bytes, nonce));
  std::memcpy(segment->data_ - header, &nonce, sizeof nonce);
  std::lock_guard lock(open_segments().mutex);
  open_segments().by_nonce[nonce] = segment;
  return segment;
}

std::shared_ptr<Segment> Segment::open(const std::string& ticket, bool keep_file) {
  std::istringstream words(ticket);
  int process = 0, file_number = 0;
  size_t bytes = 0;
  uint64_t nonce = 0;
  if (!(words >> process >> file_number >> bytes >> nonce))
    throw unavailable_error("shared memory", "a peer sent '" + ticket + "' where a segment was expected");
  if (process == getpid()) {
    std::lock_guard lock(open_segments().mutex);
    if (auto segment = open_segments().by_nonce[nonce].lock()) return segment;
  }
  const std::string path = fmt::format("/proc/{}/fd/{}", process, file_number);
  const std::string hint = "the same user, and the same container, for all ranks of a host";
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw unavailable_error("shared memory", fmt::format("cannot open {} of a peer: {}", path, std::strerror(errno)), hint);
  struct stat status {};
  if (fstat(file, &status) != 0 || static_cast<size_t>(status.st_size) != bytes + header) {
    close(file);
    throw unavailable_error("shared memory", path + " is not the segment that a peer meant", hint);
  }
  std::shared_ptr<Segment> segment(new Segment(file, bytes, nonce));
  if (!keep_file) segment->close_file();
  uint64_t found = 0;
  std::memcpy(&found, segment->data_ - header, sizeof found);
  if (found != nonce) throw unavailable_error("shared memory", path + " is not the segment that a peer meant", hint);
  return segment;
}

Segment::Segment(int file, size_t bytes, uint64_t nonce) : file_(file), bytes_(bytes), nonce_(nonce) {
  void* mapped = mmap(nullptr, bytes + header, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    close_file();
    throw unavailable_error("shared memory", fmt::format("mmap of {} bytes: {}", bytes + header, std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(mapped) + header;
}

Segment::~Segment() {
  {
    std::lock_guard lock(open_segments().mutex);
    const auto found = open_segments().by_nonce.find(nonce_);
    if (found != open_segments().by_nonce.end() && found->second.expired()) open_segments().by_nonce.erase(found);
  }
  if (data_) munmap(data_ - header, bytes_ + header);
  close_file();
}

std::string Segment::ticket() const { return fmt::format("{} {} {} {}", getpid(), file_, bytes_, nonce_); }

void Segment::commit(size_t offset, size_t bytes) {
  const auto fail = [&](const std::string& cause) -> Error {
    return unavailable_error("shared memory that a communicator needs from its first use", cause, "fewer ranks, smaller tensors, or a larger memory limit");
  };
  if (const size_t free = available_memory(); bytes > free) throw fail(fmt::format("{} bytes are needed, {} are available on this host", bytes, free));
  if (fallocate(file_, 0, static_cast<off_t>(header + offset), static_cast<off_t>(bytes)) != 0) throw fail(fmt::format("{} bytes: {}", bytes, std::strerror(errno)));
}

size_t Segment::bytes_in_use() const {
  struct stat status {};
  if (file_ < 0 || fstat(file_, &status) != 0) return bytes_ + header;
  return static_cast<size_t>(status.st_blocks) * 512;
}

void Segment::close_file() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

std::shared_ptr<Segment> share_segment(size_t bytes, size_t at_once, const std::string& purpose, bool creator, int creator_index, const AllGather& all_gather) {
  std::shared_ptr<Segment> segment;
  std::string trouble;
  const auto attempt = [&](auto&& step) {
    try {
      step();
    } catch (const Error& error) {
      trouble = "!" + error.cause;
    }
  };
  if (creator) attempt([&] { segment = Segment::create(bytes, purpose, at_once); });
  const auto tickets = all_gather(creator && segment ? segment->ticket() : trouble);
  const std::string& ticket = tickets.at(creator_index);
  if (ticket.rfind('!', 0) == 0) trouble = ticket;
  if (!creator && trouble.empty()) attempt([&] { segment = Segment::open(ticket, at_once < bytes); });
  for (const auto& said : all_gather(trouble))
    if (!said.empty() && trouble.empty()) trouble = said;
  if (!trouble.empty()) throw unavailable_error("shared memory for " + purpose, trouble.substr(1), "fewer ranks, smaller tensors, or a larger memory limit");
  if (creator && at_once == bytes) segment->close_file();
  return segment;
}

}  // namespace manyranks
