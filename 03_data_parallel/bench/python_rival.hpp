// The rival that people use today: PyTorch DistributedDataParallel over Gloo. Each rank starts a Python process of its own
// (rival_ddp.py), which sleeps on its pipe until it is asked for a block of steps: so both meet the same machine, by turns.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace manyranks {

class PythonRival {
 public:
  struct Job {
    std::string model;
    int64_t batch;
    int rank, world_size, port;
    std::string optimizer;
  };
  // Returns when it has made its first steps. Throws a Skip naming "rivals" if Python cannot import torch.
  explicit PythonRival(const Job& job);
  ~PythonRival();
  PythonRival(const PythonRival&) = delete;
  PythonRival& operator=(const PythonRival&) = delete;

  void run(int64_t steps);  // and waits for them
  int64_t parameters() const { return parameters_; }
  const std::string& version() const { return version_; }

 private:
  std::string read_line();

  pid_t child_ = -1;
  int to_child_ = -1, from_child_ = -1;
  std::string buffer_, version_;
  int64_t parameters_ = 0;
};

int free_port();  // of this host, a moment ago

}  // namespace manyranks
