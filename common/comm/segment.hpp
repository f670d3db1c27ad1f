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
  // Zeroed. The first `at_once` bytes are really there: lack of memory is an error now (exit 69), not a SIGBUS later. The rest takes an
  // address range and no memory until commit(). It is the host's memory and not the process's heap: no allocator counts it.
  static std::shared_ptr<Segment> create(size_t bytes, const std::string& purpose, size_t at_once);
  static std::shared_ptr<Segment> create(size_t bytes, const std::string& purpose) { return create(bytes, purpose, bytes); }
  static std::shared_ptr<Segment> open(const std::string& ticket, bool keep_file = false);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  std::string ticket() const;  // what a peer needs to open it
  // Takes memory for a part that was not there at once; again exit 69 if there is none. Whoever writes there first calls it.
  void commit(size_t offset, size_t bytes);
  size_t bytes_in_use() const;  // of the host's memory
  void close_file();            // once all have opened it, and nothing is left to commit; the memory lives as long as somebody maps it

 private:
  Segment(int file, size_t bytes, uint64_t nonce);
  int file_;
  size_t bytes_;
  uint64_t nonce_;  // stands before the data: proves that PID and file number mean the same to both sides
  std::byte* data_ = nullptr;
};

// Rank 0 of the group creates, the others open. Collective; a failure on one rank is an error on all. at_once < bytes: see create().
std::shared_ptr<Segment> share_segment(size_t bytes, size_t at_once, const std::string& purpose, bool creator, int creator_index, const AllGather& all_gather);
inline std::shared_ptr<Segment> share_segment(size_t bytes, const std::string& purpose, bool creator, int creator_index, const AllGather& all_gather) {
  return share_segment(bytes, bytes, purpose, creator, creator_index, all_gather);
}

// Ranks with the same text can share memory: host name, boot and process-id namespace.
std::string host_identity();

// Bytes that may still be used on this host: MemAvailable, and what the control group leaves.
size_t available_memory();

}  // namespace manyranks
