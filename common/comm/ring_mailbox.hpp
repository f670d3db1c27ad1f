// A mailbox in shared memory: one ring of bytes per (source, destination). A message is a header and its bytes; one larger than
// the ring streams through it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/doorbell.hpp"
#include "comm/matching_mailbox.hpp"
#include "comm/segment.hpp"

namespace manyranks {

class RingMailbox : public MatchingMailbox {
 public:
  static size_t head_bytes(int ranks);
  static size_t ring_bytes(int ranks);
  // Two parts of `segment`, zeroed: the heads are there, the rings are committed as far as they are used. `doing(peer)`: for error lines.
  RingMailbox(std::shared_ptr<Segment> segment, size_t heads, size_t rings, int rank, int ranks, double timeout_s, Patience patience, std::function<std::string(int)> doing);

  void wait(Message& message) override;
  void drain(const std::atomic<bool>& stop) override;

 private:
  struct Ring;
  Ring& ring(int source, int destination) const;
  size_t offset_of(int source, int destination) const;  // of a ring's bytes, in the segment
  void commit(int to, size_t end);                      // the first `end` bytes of my ring to that peer
  Doorbell& bell(int rank) const;
  bool push(int to) override;
  bool pull(int from) override;
  size_t put(int to, const std::byte* data, size_t bytes);
  size_t take(int from, std::byte* data, size_t bytes);

  std::shared_ptr<Segment> segment_;
  size_t heads_, rings_;
  size_t capacity_;
  Patience patience_;
  std::function<std::string(int)> doing_;
  std::vector<size_t> committed_;  // by peer: of my ring to it
  std::vector<bool> header_sent_;  // by peer: of the first message in its queue
};

}  // namespace manyranks
