// What all communicators of one process share: the peers on this host, the wire to the others, the limits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group.hpp"
#include "comm/host_peers.hpp"

namespace manyranks {

class Wire;

struct Fabric {
  std::string backend;            // mpi | gloo | alone
  int world_rank = 0;
  double timeout_s = 60;
  std::vector<int> host_of;       // by world rank
  std::shared_ptr<HostPeers> peers;
  std::shared_ptr<Wire> wire;     // null if all ranks are on one host

  // A group of world ranks `members`, in this order, me among them. `all_gather` runs over the parent, where member i has the place
  // positions[i]. Every rank of the parent takes part in the all_gathers, also those with no new group (join_as_stranger).
  std::unique_ptr<Group> make_group(const std::vector<int>& members, const std::vector<int>& positions, const std::string& name, const AllGather& all_gather) const;
  void join_as_stranger(const AllGather& all_gather) const;

  std::vector<int> members_on_my_host(const std::vector<int>& members) const;  // places in `members`

 private:
  int agree_on_channel(const AllGather& all_gather) const;
};

}  // namespace manyranks
