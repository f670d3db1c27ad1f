// Who am I? Every distributed program starts with this question.
//
// You learn   what rank, world size, local rank and device are, and where a program gets them from.
// Run it      mpirun -np 4 build/02_message_passing/01_ranks
//             torchrun --nproc-per-node 4 --no-python build/02_message_passing/01_ranks
//             four shells: RANK=0..3 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 build/02_message_passing/01_ranks
//             srun -n 4 --mpi=pmix build/02_message_passing/01_ranks
//             build/02_message_passing/01_ranks --nodes 2 --gpus 4     (only draws: no such cluster needed)
// You see     the same map whatever started it:
//               node 0 (laptop) | rank  0* local 0 cpu | rank  1  local 1 cpu |
//               node 1 (...)    | ...
//               4 ranks agree on who is who
// Read next   02_point_to_point.cpp
#include "comm/communicator.hpp"  // Communicator
#include "launch/process.hpp"     // Process, place_ranks, draw_map

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options: the shape of a cluster that you would like to see.
    Options options("02_message_passing/01_ranks", "who am I: ranks, nodes and devices");
    ClusterShape imagined{0, 0, 0};
    options.add("--nodes", imagined.nodes, "draw the map of a cluster with this many nodes");
    options.add("--gpus", imagined.gpus_per_node, "GPUs per node of that cluster");
    options.add("--processes", imagined.processes_per_node, "processes per node; 0: one per GPU");

    // 2. Launch: the launcher's variables (or MPI_Init) say who I am; the peers say which host they are on.
    process.start(options);
    if (imagined.nodes > 0) {
      if (imagined.processes_per_node == 0) imagined.processes_per_node = std::max(1, imagined.gpus_per_node);
      std::vector<std::string> hosts(imagined.nodes, "imagined");
      if (process.is_root()) fmt::print("{}", draw_map(place_ranks(imagined), hosts, -1));
      return;
    }
    Communicator& world = process.world();

    // 3. Everybody tells everybody: (rank, node, local rank), 3 numbers each.            mine: (3), all: (world_size, 3)
    const auto mine = torch::tensor({int64_t{process.rank()}, int64_t{process.node()}, int64_t{process.local_rank()}});
    auto all = torch::empty({process.world_size(), 3}, torch::kInt64);
    world.all_gather(all, mine);

    // 4. Verify: what the peers say equals what this rank worked out for itself, and each (node, local rank) is taken once.
    std::set<std::pair<int64_t, int64_t>> seats;
    for (const Place& place : process.places()) {
      const auto row = all[place.rank];
      const auto expected = torch::tensor({int64_t{place.rank}, int64_t{place.node}, int64_t{place.local_rank}});
      if (!torch::equal(row, expected) || !seats.emplace(place.node, place.local_rank).second)
        throw verify_error("01_ranks", fmt::format("rank {} says (rank, node, local rank) = ({}, {}, {}), rank {} worked out ({}, {}, {})",
                                                   place.rank, row[0].item<int64_t>(), row[1].item<int64_t>(), row[2].item<int64_t>(),
                                                   process.rank(), place.rank, place.node, place.local_rank));
    }
    // A last word from all: ranks 0..n-1 sum to n(n-1)/2 only if nobody is missing and nobody is there twice.
    auto sum = torch::tensor({int64_t{process.rank()}});
    world.all_reduce(sum);
    const int64_t n = process.world_size();
    if (sum.item<int64_t>() != n * (n - 1) / 2) throw verify_error("01_ranks", fmt::format("the ranks sum to {}, not {}", sum.item<int64_t>(), n * (n - 1) / 2));

    // 5. Report.
    if (process.is_root()) fmt::print("{}  {} rank(s) agree on who is who\n", draw_map(process.places(), process.hosts(), 0), n);
  });
}
