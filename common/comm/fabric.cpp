#include "comm/fabric.hpp"

#include <algorithm>

#include "comm/host_group.hpp"
#include "comm/wire_group.hpp"

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
  if (!wire) return host;
  const int channel = agree_on_channel(all_gather);
  if (here.size() == members.size()) return host;
  std::vector<std::vector<int>> hosts;
  std::vector<int> numbers;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto found = std::find(numbers.begin(), numbers.end(), host_of[members[i]]);
    if (found == numbers.end()) numbers.push_back(host_of[members[i]]), hosts.push_back({static_cast<int>(i)});
    else hosts[found - numbers.begin()].push_back(static_cast<int>(i));
  }
  return std::make_unique<WireGroup>(std::move(host), wire, channel, members, here[my_place], hosts, name, timeout_s);
}

// The first channel that is free on all ranks of the parent. Groups without a common rank may share one.
int Fabric::agree_on_channel(const AllGather& all_gather) const {
  int channel = 0;
  for (const auto& free : all_gather(std::to_string(wire->next_channel))) channel = std::max(channel, std::stoi(free));
  wire->next_channel = channel + 1;
  return channel;
}

// As many rounds as make_group takes: two to share a segment, one to agree on a channel.
void Fabric::join_as_stranger(const AllGather& all_gather) const {
  all_gather("");
  all_gather("");
  if (wire) agree_on_channel(all_gather);
}

}  // namespace manyranks
