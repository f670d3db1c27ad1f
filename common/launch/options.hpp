// The flags that every program knows, on top of CLI11. A program adds its own through app().
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace manyranks {

class Options {
 public:
  // `name` is the program ("03_data_parallel/01_naive"), `idea` one line about it for --help.
  Options(std::string name, const std::string& idea);

  std::string device = "auto";   // auto | cpu | cuda
  std::string backend = "auto";  // auto | mpi | gloo | nccl
  int64_t steps = 0;             // 0: the program's own default
  int64_t batch = 0;             // per rank; 0: the program's own default
  uint64_t seed = 1;
  int threads = 1;               // per rank; fixed, so that scaling over ranks compares like with like
  std::string data;              // folder or file; empty: the embedded default
  std::string csv;               // append measurements here
  std::string samples;           // raw step times
  std::string trace;             // Chrome/Perfetto trace
  double timeout_s = 60;         // how long a rank may wait for its peers
  uint64_t memory_cap = 0;       // bytes per rank, 0: none
  bool verify_only = false;
  bool quick = false;            // seconds, for tests
  bool json = false;

  CLI::App& app() { return app_; }
  const std::string& name() const { return name_; }

  // Throws CLI::ParseError for --help and for bad flags; Process::start turns it into the right end.
  void parse(int argc, char** argv);

  // steps and batch with the program's defaults filled in.
  int64_t steps_or(int64_t usual, int64_t quick_steps) const { return steps ? steps : quick ? quick_steps : usual; }
  int64_t batch_or(int64_t usual) const { return batch ? batch : usual; }

  // The resolved setting in one line, for rank 0: every flag that differs from its default, and the seed.
  std::string summary() const;

 private:
  std::string name_;
  CLI::App app_;
};

}  // namespace manyranks
