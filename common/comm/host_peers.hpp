// The processes of this host, as one sees the others: who they are, what they are doing, whether they live, the memory
// they let others read, and how to end them. One per process; all its communicators share it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.hpp"
#include "comm/segment.hpp"

namespace manyranks {

// Memory of several ranks that all of them map. A `place` names a spot in it, in a word: id and offset; 0 is nowhere.
struct Allocation {
  uint32_t id = 0;
  size_t bytes = 0;                 // of one rank's part
  std::vector<std::byte*> parts;    // by index on this host; null: not a member
  std::shared_ptr<Segment> segment;
};

constexpr int place_offset_bits = 40;
constexpr bool same_allocation(uint64_t place, uint64_t other) { return place >> place_offset_bits == other >> place_offset_bits; }

class HostPeers {
 public:
  // `world_ranks` of this host in order, me at `index`. Collective over the world.
  HostPeers(int index, std::vector<int> world_ranks, const AllGather& world_all_gather);
  ~HostPeers();

  int index() const { return index_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int world_rank(int index) const { return ranks_[index]; }
  int index_of(int world_rank) const;  // -1: on another host

  // What this process is doing, for the error lines of its peers.
  void begin_call(const std::string& group, uint64_t sequence, const Call& call);
  void end_call();
  void announce(std::string_view what);  // in the program's own words: "stage 1 of 2, backward of microbatch 2"; empty: nothing to say
  std::string doing(int index) const;  // "rank 2 (pid 4711) [stage 1 of 2, ...] is in all_reduce(...) #7 of 'world'"

  // Memory. `members` are indices on this host.
  std::shared_ptr<Allocation> add_allocation(std::shared_ptr<Segment> segment, size_t bytes, const std::vector<int>& members, uint32_t id);
  uint32_t next_allocation_id();
  uint64_t place_of(const void* address, size_t bytes);        // 0: not in an allocation
  std::byte* at(uint64_t place, int index);                    // null if that allocation has no such member

  // The end. `finished`: this process leaves in order, its death is no loss.
  void set_finished();
  bool finished(int index) const;
  bool claim_failure(int code);    // true for the first caller on this host
  int failure() const;             // its exit code, 0: none
  int failed_rank() const;         // world rank of who claimed it
  int death_file(int index) const { return pidfds_[index]; }  // readable once that process is dead; -1: myself
  void end_others(double grace_s) noexcept;

 private:
  struct Record;
  struct Board;
  Board& board() const;
  Record& record(int index) const;

  int index_;
  std::vector<int> ranks_;
  std::vector<int> pidfds_;
  std::shared_ptr<Segment> segment_;
  std::mutex mutex_;
  std::map<const std::byte*, std::weak_ptr<Allocation>> by_address_;
  std::map<uint32_t, std::weak_ptr<Allocation>> by_id_;
};

}  // namespace manyranks
