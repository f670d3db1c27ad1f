// A mailbox in shared memory: one ring of bytes per (source, destination). A message is a header and its bytes; one larger than
// the ring streams through it.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "comm/doorbell.hpp"
#include "comm/mailbox.hpp"

namespace manyranks {

class RingMailbox : public Mailbox {
 public:
  static size_t bytes_needed(int ranks);
  // `memory`: zeroed, shared by all ranks. `doing(peer)`: for error lines.
  RingMailbox(std::byte* memory, int rank, int ranks, double timeout_s, Patience patience, std::function<std::string(int)> doing);
  ~RingMailbox() override;

  std::shared_ptr<Message> send(int to, int tag, const void* data, size_t count, Dtype dtype) override;
  std::shared_ptr<Message> recv(int from, int tag, void* data, size_t count, Dtype dtype) override;
  void wait(Message& message) override;
  void drain(const std::atomic<bool>& stop) override;

 private:
  struct Ring;
  struct Header {
    int64_t tag, dtype, bytes;
  };
  struct Stray {  // came before somebody asked for it
    Header header;
    std::vector<std::byte> data;
    size_t moved = 0;
    std::shared_ptr<Message> claimed_by;
  };
  struct Peer {
    std::deque<std::shared_ptr<Message>> sends, recvs;
    bool header_sent = false;               // of sends.front()
    std::deque<std::shared_ptr<Stray>> strays;
    std::shared_ptr<Message> incoming;      // what the bytes in the ring belong to
    std::shared_ptr<Stray> incoming_stray;
  };

  Ring& ring(int source, int destination) const;
  Doorbell& bell(int rank) const;
  bool advance();                   // under the lock; true if something moved
  bool push(int to);
  bool pull(int from);
  void match(int from, const Header& header);
  void deliver(int from, Stray& stray);
  bool idle() const;
  bool fits(Message& message, const Header& header) const;  // if not, the message is done, with an error
  size_t put(Ring& ring, const std::byte* data, size_t bytes);
  size_t take(Ring& ring, std::byte* data, size_t bytes);

  std::byte* memory_;
  int rank_, ranks_;
  size_t capacity_;
  double timeout_s_;
  Patience patience_;
  std::function<std::string(int)> doing_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
};

}  // namespace manyranks
