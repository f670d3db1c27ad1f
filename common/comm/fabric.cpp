#include "comm/fabric.hpp"

#include <algorithm>

#include "comm/host_group.hpp"

namespace manyranks {

std::vector<int> Fabric::members_on_my_host(const std::vector<int>& members) const {
  std::vector<int> here;
  for (size_t i = 0; i < members.size(); ++i)
    if (host_of[members[i]] == host_of[world_rank]) here.push_back(static_cast<int>(i));
  return here;
}

std::unique_ptr<Group> Fabric::make_group(const std::vector<int>& members, const std::vector<int>& positions, const std::string& name, const AllGather& all_gather) const {
  const std::vector<int> here = members_on_my_host(members);
  std::vector<int> indices;
  int my_place = 0;
  for (size_t i = 0; i < here.size(); ++i) {
    indices.push_back(peers->index_of(members[here[i]]));
    if (members[here[i]] == world_rank) my_place = static_cast<int>(i);
  }
  auto host = std::make_unique<HostGroup>(peers, indices, my_place, name, timeout_s, all_gather, positions[here[0]]);
  return host;
}

// As many rounds as share_segment makes.
void Fabric::join_as_stranger(const AllGather& all_gather) {
  all_gather("");
  all_gather("");
}

}  // namespace manyranks
