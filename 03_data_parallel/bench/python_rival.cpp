#include "python_rival.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <sstream>
#include <vector>

#include "launch/errors.hpp"  // Skip, io_error

extern char** environ;

namespace manyranks {

int free_port() {
  const int socket_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool good = socket_ >= 0 && bind(socket_, reinterpret_cast<sockaddr*>(&address), length) == 0 && getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (socket_ >= 0) close(socket_);
  if (!good) throw io_error("free_port", std::strerror(errno));
  return ntohs(address.sin_port);
}

PythonRival::PythonRival(const Job& job) {
  std::signal(SIGPIPE, SIG_IGN);  // a rival that ended is an error line, not a silent death
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) throw io_error("pipe", std::strerror(errno));
  std::vector<std::string> words{MANYRANKS_PYTHON, MANYRANKS_RIVAL_SCRIPT, "--model", job.model, "--batch", std::to_string(job.batch), "--optimizer", job.optimizer};
  std::vector<std::string> variables{fmt::format("RANK={}", job.rank), fmt::format("WORLD_SIZE={}", job.world_size), fmt::format("MASTER_PORT={}", job.port), "MASTER_ADDR=127.0.0.1",
                                     "OMP_NUM_THREADS=1"};
  // Ours, without what mpirun says about this rank.
  for (char** variable = environ; *variable; ++variable)
    if (std::strncmp(*variable, "OMPI_", 5) != 0 && std::strncmp(*variable, "PMIX_", 5) != 0 && std::strncmp(*variable, "OMP_", 4) != 0) variables.emplace_back(*variable);
  std::vector<char*> arguments, environment;
  for (auto& word : words) arguments.push_back(word.data());
  for (auto& variable : variables) environment.push_back(variable.data());
  arguments.push_back(nullptr), environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  const int error = posix_spawn(&child_, arguments[0], &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]), close(out[1]);
  to_child_ = in[1], from_child_ = out[0];
  if (error) throw Skip("rivals", fmt::format("{}: {}; scripts/setup.sh --rivals", MANYRANKS_PYTHON, std::strerror(error)));
  std::istringstream line(read_line());
  std::string word;
  line >> word;
  if (word == "missing") throw Skip("rivals", line.str() + "; scripts/setup.sh --rivals");
  line >> version_ >> parameters_;
}

PythonRival::~PythonRival() {
  close(to_child_);  // the end of its input is the end of it
  if (child_ > 0) waitpid(child_, nullptr, 0);
  close(from_child_);
}

void PythonRival::run(int64_t steps) {
  const std::string order = fmt::format("{}\n", steps);
  if (write(to_child_, order.data(), order.size()) != static_cast<ssize_t>(order.size())) throw io_error("PyTorch DDP", "its process does not listen");
  if (read_line() != "done") throw io_error("PyTorch DDP", "an unexpected answer");
}

std::string PythonRival::read_line() {
  for (;;) {
    if (const auto end = buffer_.find('\n'); end != std::string::npos) {
      const std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char bytes[256];
    const ssize_t n = read(from_child_, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw io_error("PyTorch DDP", "its process has ended: its own words are above");
    buffer_.append(bytes, static_cast<size_t>(n));
  }
}

}  // namespace manyranks
