#include "launch/rank_map.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "launch/errors.hpp"

namespace manyranks {

std::vector<Place> place_ranks(const ClusterShape& shape) {
  const auto& [nodes, gpus, processes] = shape;
  if (nodes < 1 || gpus < 0 || processes < 1)
    throw usage_error("placing ranks", fmt::format("{} nodes x {} GPUs with {} processes per node is no cluster", nodes, gpus, processes));
  if (gpus > 0 && processes > gpus)
    throw usage_error("placing ranks", fmt::format("{} processes per node share {} GPUs: NCCL refuses two ranks on one GPU", processes, gpus),
                      fmt::format("start {} per node, or --device cpu", gpus));
  if (gpus > 0 && gpus % processes != 0)
    throw usage_error("placing ranks", fmt::format("{} GPUs cannot be shared out evenly to {} processes", gpus, processes));
  const int devices_each = gpus / processes;
  std::vector<Place> places;
  for (int node = 0; node < nodes; ++node) {
    for (int local_rank = 0; local_rank < processes; ++local_rank) {
      Place place{node * processes + local_rank, node, local_rank, {}};
      for (int d = 0; d < devices_each; ++d) place.devices.push_back(local_rank * devices_each + d);
      places.push_back(std::move(place));
    }
  }
  return places;
}

std::string draw_map(const std::vector<Place>& places, const std::vector<std::string>& hosts, int me) {
  std::map<int, std::string> rows;
  for (const auto& place : places) {
    const std::string device = place.devices.empty() ? "cpu" : fmt::format("gpu {}", fmt::join(place.devices, ","));
    rows[place.node] += fmt::format(" rank {:>2}{} local {} {} |", place.rank, place.rank == me ? "*" : " ", place.local_rank, device);
  }
  std::string text;
  for (const auto& [node, row] : rows) {
    const std::string host = node < static_cast<int>(hosts.size()) ? hosts[node] : "?";
    text += fmt::format("  node {} ({}) |{}\n", node, host, row);
  }
  return text;
}

}  // namespace manyranks
