// A mailbox over a wire, for peers on other hosts; peers on this host go through their own.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "comm/matching_mailbox.hpp"
#include "comm/wire.hpp"

namespace manyranks {

class WireMailbox : public MatchingMailbox {
 public:
  // local[i]: rank i's number in `host`, or -1 if it is on another host.
  WireMailbox(std::shared_ptr<Wire> wire, int channel, std::vector<int> world_ranks, int rank, double timeout_s, MatchingMailbox& host, std::vector<int> local);

  std::shared_ptr<Message> send(int to, int tag, const void* data, size_t count, Dtype dtype) override;
  std::shared_ptr<Message> recv(int from, int tag, void* data, size_t count, Dtype dtype) override;
  void wait(Message& message) override;
  void drain(const std::atomic<bool>& stop) override;

 private:
  using Request = std::unique_ptr<Wire::Request>;
  struct Flight {  // what is on the wire between me and one peer
    Header out, in;
    Request header_out, data_out, header_in, data_in;
  };
  bool push(int to) override;
  bool pull(int from) override;

  std::shared_ptr<Wire> wire_;
  int channel_;
  std::vector<int> world_ranks_;
  MatchingMailbox& host_;
  std::vector<int> local_;
  std::vector<Flight> flights_;
};

}  // namespace manyranks
