// Collectives of ranks on several hosts: shared memory inside a host, a wire between them. The order of a sum depends on where ranks
// are; every rank still gets the same bits.
#pragma once

#include "comm/group.hpp"
#include "comm/host_group.hpp"
#include "comm/wire.hpp"
#include "comm/wire_mailbox.hpp"

namespace manyranks {

class WireGroup : public Group {
 public:
  // hosts: for each host its members (ranks of this group), in order. `host`: the group of those on mine.
  WireGroup(std::unique_ptr<HostGroup> host, std::shared_ptr<Wire> wire, int channel, std::vector<int> world_ranks, int rank, std::vector<std::vector<int>> hosts,
            std::string name, double timeout_s);

  int rank() const override { return flat_.rank(); }
  int size() const override { return flat_.size(); }
  std::string transport() const override;
  void all_reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op) override;
  void reduce_scatter(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op) override;
  void reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op, int root) override;
  void exchange(Operation operation, void* out, const void* in, size_t count, Dtype dtype, int root) override;
  void meet(const Call& call) override;
  Mailbox& mailbox() override { return mailbox_; }

 private:
  void begin(const Call& call);  // compares with the neighbours in rank order
  void end();

  std::unique_ptr<HostGroup> host_;
  std::shared_ptr<Wire> wire_;
  std::string name_;
  WireTransport flat_;         // all ranks
  WireTransport counterparts_; // those with my place on the other hosts; if hosts differ in size, the first of each host
  bool even_;                  // hosts have equally many ranks
  bool alone_on_hosts_;        // one rank on each host
  uint64_t sequence_ = 0;
  WireMailbox mailbox_;
};

}  // namespace manyranks
