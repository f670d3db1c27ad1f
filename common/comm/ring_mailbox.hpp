// A mailbox in shared memory: one ring of bytes per (source, destination). A message is a header and its bytes; one larger than
// the ring streams through it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/doorbell.hpp"
#include "comm/matching_mailbox.hpp"

namespace manyranks {

class RingMailbox : public MatchingMailbox {
 public:
  static size_t bytes_needed(int ranks);
  // `memory`: zeroed, shared by all ranks. `doing(peer)`: for error lines.
  RingMailbox(std::byte* memory, int rank, int ranks, double timeout_s, Patience patience, std::function<std::string(int)> doing);

  void wait(Message& message) override;
  void drain(const std::atomic<bool>& stop) override;

 private:
  struct Ring;
  Ring& ring(int source, int destination) const;
  Doorbell& bell(int rank) const;
  bool push(int to) override;
  bool pull(int from) override;
  size_t put(Ring& ring, const std::byte* data, size_t bytes);
  size_t take(Ring& ring, std::byte* data, size_t bytes);

  std::byte* memory_;
  size_t capacity_;
  Patience patience_;
  std::function<std::string(int)> doing_;
  std::vector<bool> header_sent_;  // by peer: of the first message in its queue
};

}  // namespace manyranks
