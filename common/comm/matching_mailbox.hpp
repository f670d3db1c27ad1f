// The half of a mailbox that is the same for every carrier: queues per peer, and matching by tag in order. A message that nobody
// has asked for yet is put aside, but only while somebody asks that peer for another one.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "comm/mailbox.hpp"

namespace manyranks {

class MatchingMailbox : public Mailbox {
 public:
  MatchingMailbox(int rank, int ranks, double timeout_s) : rank_(rank), timeout_s_(timeout_s), peers_(ranks) {}
  std::shared_ptr<Message> send(int to, int tag, const void* data, size_t count, Dtype dtype) override;
  std::shared_ptr<Message> recv(int from, int tag, void* data, size_t count, Dtype dtype) override;

  bool advance();  // true if something moved
  bool idle();

 protected:
  struct Header {
    int64_t tag, dtype, bytes;
  };
  struct Stray {  // came before somebody asked for it
    Header header;
    std::vector<std::byte> data;
    std::shared_ptr<Message> claimed_by;
  };
  // What the bytes that come from a peer belong to.
  struct Incoming {
    std::shared_ptr<Message> message;
    std::shared_ptr<Stray> stray;
    size_t moved = 0;
    explicit operator bool() const { return message || stray; }
    std::byte* data() const { return message ? message->data : stray->data.data(); }
    size_t bytes() const { return message ? message->bytes : stray->data.size(); }
  };
  struct Peer {
    std::deque<std::shared_ptr<Message>> sends, recvs;
    std::deque<std::shared_ptr<Stray>> strays;
    Incoming incoming;
  };

  // Under the lock; true if something moved.
  virtual bool push(int to) = 0;
  virtual bool pull(int from) = 0;
  void match(int from, const Header& header);  // sets incoming
  void arrived(int from);                      // incoming is complete
  static Header header_of(const Message& message) { return {message.tag, static_cast<int64_t>(message.dtype), static_cast<int64_t>(message.bytes)}; }
  [[noreturn]] void give_up(const Message& message, const std::string& doing) const;

  int rank_;
  double timeout_s_;
  std::mutex mutex_;
  std::vector<Peer> peers_;

 private:
  bool fits(Message& message, const Header& header) const;  // if not, the message is done, with an error
  void deliver(int from, Stray& stray);
  bool advance_locked();
};

}  // namespace manyranks
