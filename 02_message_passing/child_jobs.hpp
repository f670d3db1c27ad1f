// Starts jobs of several ranks from inside a lesson, with a time limit, and reports how they ended: to watch programs fail.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace manyranks {

struct JobResult {
  bool hung = false;    // had to be ended at the time limit
  int exit_code = 0;    // of mpirun, or the first non-zero one of the ranks
  double seconds = 0;
  std::string output;   // standard output and error of all ranks
};

// `ranks` copies of argv, found through RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: no MPI, no launcher.
JobResult run_by_variables(const std::vector<std::string>& argv, int ranks, double limit_s);

// mpirun -np ranks argv.
JobResult run_by_mpirun(const std::vector<std::string>& argv, int ranks, double limit_s);

// The path of the running program, for starting it again.
std::string own_path();

// The line of `output` that starts with "manyranks: error:", or the first line that is not noise of mpirun.
std::string telling_line(const std::string& output);

}  // namespace manyranks
