// From (nodes, GPUs per node, processes per node) to ranks and devices: one pure function.
#pragma once

#include <string>
#include <vector>

namespace manyranks {

struct ClusterShape {
  int nodes = 1;
  int gpus_per_node = 0;       // 0: CPU only
  int processes_per_node = 1;  // usually one per GPU
};

struct Place {
  int rank = 0;
  int node = 0;
  int local_rank = 0;
  std::vector<int> devices;  // of its node; empty: CPU. More than one if a process drives several GPUs
};

// Ranks count up within a node, then over nodes (as mpirun --map-by core, torchrun and srun --distribution=block do).
// Throws a usage error when the GPUs of a node cannot be shared out evenly: two ranks on one GPU is refused, because
// NCCL refuses it too.
std::vector<Place> place_ranks(const ClusterShape& shape);

// The map as text: a box per node, a cell per rank, "*" at `me` (-1: nobody).
std::string draw_map(const std::vector<Place>& places, const std::vector<std::string>& hosts, int me);

}  // namespace manyranks
