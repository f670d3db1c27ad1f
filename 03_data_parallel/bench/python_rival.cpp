#include "python_rival.hpp"

#include <fmt/format.h>

#include <sstream>

#include "launch/errors.hpp"  // Skip, io_error

namespace manyranks {

PythonRival::PythonRival(const Job& job)
    : peer_({MANYRANKS_PYTHON, MANYRANKS_RIVAL_SCRIPT, "--model", job.model, "--batch", std::to_string(job.batch), "--optimizer", job.optimizer},
            {fmt::format("RANK={}", job.rank), fmt::format("WORLD_SIZE={}", job.world_size), fmt::format("MASTER_PORT={}", job.port), "MASTER_ADDR=127.0.0.1", "OMP_NUM_THREADS=1"},
            job.timeout_s) {
  std::istringstream line(peer_.answer());
  std::string word;
  line >> word;
  if (word.empty() || word == "missing") throw Skip("rivals", fmt::format("rival_ddp.py: {}; scripts/setup.sh --rivals", word.empty() ? "no answer" : line.str()));
  line >> version_ >> parameters_;
}

void PythonRival::run(int64_t steps) {
  if (const std::string said = peer_.ask(std::to_string(steps)); said != "done") throw io_error("PyTorch DDP", "an unexpected answer: " + said);
}

}  // namespace manyranks
