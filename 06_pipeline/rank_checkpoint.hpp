// A checkpoint of a job in which every rank holds something of its own: DIR/step000012/rank0003.safetensors from every rank. DIR/latest
// names the folder once all files are there: a job that dies while it writes leaves the checkpoint before it as it was.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "comm/communicator.hpp"  // Communicator
#include "launch/errors.hpp"
#include "train/checkpoint.hpp"   // save_tensors

namespace manyranks::pipeline {

struct RankCheckpoint {
  std::string folder;

  // The newest file of this rank.
  std::string latest(int rank) const {
    std::ifstream in(folder + "/latest");
    std::string name;
    if (!(in >> name)) throw data_error("--resume", folder + "/latest does not name a checkpoint");
    return file(name, rank);
  }

  void save(Communicator& world, int64_t step, const NamedTensors& tensors, const safetensors::Metadata& metadata) const {
    const std::string name = fmt::format("step{:06d}", step);
    std::error_code trouble;
    std::filesystem::create_directories(folder + "/" + name, trouble);
    if (trouble) throw io_error("--checkpoint", fmt::format("{}/{}: {}", folder, name, trouble.message()), "a folder that can be written");
    save_tensors(file(name, world.rank()), tensors, metadata);
    world.barrier();
    if (world.rank() != 0) return;
    std::ofstream out(folder + "/latest.new");
    out << name << "\n" << std::flush;
    if (out) std::filesystem::rename(folder + "/latest.new", folder + "/latest", trouble);
    if (!out || trouble) throw io_error("--checkpoint", folder + "/latest cannot be written", "space, and a folder that can be written");
  }

 private:
  std::string file(const std::string& name, int rank) const { return fmt::format("{}/{}/rank{:04d}.safetensors", folder, name, rank); }
};

}  // namespace manyranks::pipeline
