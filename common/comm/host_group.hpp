// Collectives between ranks of one host, through shared memory.
//
// Each rank has a counter that only it advances. A call is a fixed sequence of steps; "everybody has reached step k" is the
// only synchronisation there is. Before the first step a rank writes what it calls; after it, everybody compares.
//
// Three ways to move data, decided from what all ranks wrote, so that all decide alike:
//   small       everybody writes its data beside its call, everybody reads all: one step
//   staged      ordinary memory: through two slots per rank, in chunks, the slots alternating over chunks and calls
//   zero copy   memory from allocate(): peers read and write the tensors themselves
// Sums are made in rank order in each of them: the same bits whatever the way.
#pragma once

#include <vector>

#include "comm/doorbell.hpp"
#include "comm/group.hpp"
#include "comm/host_peers.hpp"
#include "comm/ring_mailbox.hpp"

namespace manyranks {

class HostGroup : public Group {
 public:
  // members: indices on this host, in the order of their rank in this group. `all_gather` exchanges over the members (or more
  // ranks; then `creator` is the place of rank 0 in what it returns).
  HostGroup(std::shared_ptr<HostPeers> peers, std::vector<int> members, int rank, std::string name, double timeout_s,
            const AllGather& all_gather, int creator = 0);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string transport() const override { return "shared memory"; }
  void all_reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op) override;
  void reduce_scatter(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op) override;
  void reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op, int root) override;
  void exchange(Operation operation, void* out, const void* in, size_t count, Dtype dtype, int root) override;
  void meet(const Call& call) override;
  Mailbox& mailbox() override { return *mailbox_; }
  MatchingMailbox& matching_mailbox() { return *mailbox_; }

  const std::vector<int>& members() const { return members_; }
  static constexpr size_t small_bytes = 8192;
  size_t shared_bytes() const { return segment_->bytes_in_use(); }  // of the host's memory, for all its ranks together

 private:
  struct Control;
  using Bytes = std::byte*;

  Control& control(int rank) const;
  Bytes small_slot(int rank) const;             // of the current call
  Bytes slot(int rank, uint64_t chunk) const;   // of that chunk
  void commit_slots();                          // mine, before I first write to them

  void begin(const Call& call, uint64_t in_place, uint64_t out_place);  // writes what I call
  void step();                                  // I have reached the next step
  void everybody();                             // waits until all have reached my step
  void arrive();                                // step + everybody + compare
  void compare() const;
  void end();
  [[noreturn]] void complain(int peer) const;
  [[noreturn]] void give_up() const;
  uint64_t in_place(int rank) const;
  bool share_places(bool in, bool out) const;   // all ranks named the same place

  void reduce_staged(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op, int root);
  void reduce_in_place(size_t count, Dtype dtype, ReduceOp op);
  void exchange_staged(const ExchangeShape& shape, Bytes out, const std::byte* in, size_t bytes);
  void exchange_direct(const ExchangeShape& shape, Bytes out, size_t bytes);

  std::shared_ptr<HostPeers> peers_;
  std::vector<int> members_;
  int rank_;
  std::string name_;
  double timeout_s_;
  Patience patience_;
  size_t slot_bytes_;
  size_t slots_ = 0;  // where they begin in the segment
  bool slots_committed_ = false;
  std::shared_ptr<Segment> segment_;
  uint64_t sequence_ = 0;  // calls
  uint64_t step_ = 0;      // what my counter says
  uint64_t chunk_ = 0;     // staged so far, over all calls
  Call call_;
  std::unique_ptr<RingMailbox> mailbox_;
};

}  // namespace manyranks
