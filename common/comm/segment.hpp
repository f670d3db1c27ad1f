// Memory shared by the ranks of one host. It has no name in any file system, so nothing can be left behind, not even by
// kill -9, and a container's small /dev/shm does not matter: peers open it through /proc/PID/fd.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace manyranks {

// Everybody's string, by rank in the group that exchanges. How it is carried is the caller's affair.
using AllGather = std::function<std::vector<std::string>(const std::string& mine)>;

class Segment {
 public:
  // Zeroed, and really there: lack of memory is an error now (exit 69), not a SIGBUS later.
  static std::shared_ptr<Segment> create(size_t bytes, const std::string& purpose);
  static std::shared_ptr<Segment> open(const std::string& ticket);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  std::string ticket() const;  // what a peer needs to open it
  void close_file();           // once all have opened it; the memory lives as long as somebody maps it

 private:
  Segment(int file, size_t bytes, uint64_t nonce);
  int file_;
  size_t bytes_;
  uint64_t nonce_;  // stands before the data: proves that PID and file number mean the same to both sides
  std::byte* data_ = nullptr;
};

// Rank 0 of the group creates, the others open. Collective; a failure on one rank is an error on all.
std::shared_ptr<Segment> share_segment(size_t bytes, const std::string& purpose, bool creator, int creator_index, const AllGather& all_gather);

// Ranks with the same text can share memory: host name, boot and process-id namespace.
std::string host_identity();

// Bytes that may still be used on this host: MemAvailable, and what the control group leaves.
size_t available_memory();

}  // namespace manyranks
