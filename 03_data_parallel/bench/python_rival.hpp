// The rival that people use today: PyTorch DistributedDataParallel over Gloo, in a Python process beside each rank (rival_ddp.py).
#pragma once

#include <cstdint>
#include <string>

#include "measure/line_peer.hpp"  // LinePeer

namespace manyranks {

class PythonRival {
 public:
  struct Job {
    std::string model;
    int64_t batch;
    int rank, world_size, port;
    std::string optimizer;
    double timeout_s;
  };
  // Returns when it has made its first steps. Throws a Skip naming "rivals" if Python cannot import torch.
  explicit PythonRival(const Job& job);

  void run(int64_t steps);  // and waits for them
  int64_t parameters() const { return parameters_; }
  const std::string& version() const { return version_; }

 private:
  LinePeer peer_;
  std::string version_;
  int64_t parameters_ = 0;
};

}  // namespace manyranks
