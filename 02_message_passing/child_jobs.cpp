#include "child_jobs.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "launch/errors.hpp"
#include "measure/line_peer.hpp"  // free_port

extern char** environ;

namespace manyranks {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// This process's environment without what a launcher left there: the child is a job of its own.
std::vector<std::string> clean_environment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry; ++entry) {
    bool of_launcher = false;
    for (const char* prefix : {"OMPI_", "PMIX_", "PMI_", "ORTE_", "PRTE_", "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "MASTER_", "TORCHELASTIC_", "SLURM_"})
      of_launcher |= std::strncmp(*entry, prefix, std::strlen(prefix)) == 0;
    if (!of_launcher) kept.emplace_back(*entry);
  }
  return kept;
}

// posix_spawn, not fork: a copy of a process in which MPI is running is asking for trouble.
pid_t spawn(const std::vector<std::string>& argv, const std::vector<std::string>& environment, int output) {
  std::vector<char*> arguments, variables;
  for (const auto& word : argv) arguments.push_back(const_cast<char*>(word.c_str()));
  for (const auto& word : environment) variables.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_adddup2(&actions, output, 2);
  pid_t child = -1;
  const int error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error) throw unavailable_error("starting " + argv[0], std::strerror(error));
  return child;
}

// Reads until everybody has closed the pipe or the limit is over; then ends who is left: SIGTERM first, so that mpirun can end its ranks.
JobResult watch(std::vector<pid_t> children, int pipe_end, double limit_s) {
  const auto start = Clock::now();
  JobResult result;
  for (bool open = true; open && since(start) < limit_s;) {
    pollfd waiting{pipe_end, POLLIN, 0};
    if (poll(&waiting, 1, 50) <= 0) continue;
    char buffer[4096];
    const ssize_t n = read(pipe_end, buffer, sizeof buffer);
    if (n > 0) result.output.append(buffer, n);
    open = n > 0;
  }
  result.seconds = since(start);
  for (const int signal : {0, SIGTERM, SIGKILL}) {
    if (signal && !children.empty()) result.hung = true;
    for (const pid_t child : children)
      if (signal) kill(child, signal);
    const auto wait_start = Clock::now();
    while (!children.empty() && since(wait_start) < (signal ? 3.0 : result.seconds < limit_s ? 2.0 : 0.0)) {
      std::erase_if(children, [&](pid_t child) {
        int status = 0;
        if (waitpid(child, &status, WNOHANG) != child) return false;
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (!signal && result.exit_code == 0) result.exit_code = code;
        return true;
      });
      if (!children.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  close(pipe_end);
  return result;
}

}  // namespace

JobResult run_by_variables(const std::vector<std::string>& argv, int ranks, double limit_s) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) throw io_error("pipe", std::strerror(errno));
  const std::string port = std::to_string(free_port());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    auto environment = clean_environment();
    for (const auto& [name, value] : std::initializer_list<std::pair<std::string, std::string>>{
             {"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(ranks)}, {"LOCAL_RANK", std::to_string(rank)}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}})
      environment.push_back(name + "=" + value);
    children.push_back(spawn(argv, environment, ends[1]));
  }
  close(ends[1]);
  return watch(children, ends[0], limit_s);
}

JobResult run_by_mpirun(const std::vector<std::string>& argv, int ranks, double limit_s) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) throw io_error("pipe", std::strerror(errno));
  auto environment = clean_environment();
  // As root and with more ranks than cores, Open MPI wants to be told; other MPIs do not look at these.
  for (const char* setting : {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1",
                              "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"})   // the last is Open MPI 5's
    environment.emplace_back(setting);
  std::vector<std::string> command{"mpirun", "-np", std::to_string(ranks)};
  command.insert(command.end(), argv.begin(), argv.end());
  const pid_t child = spawn(command, environment, ends[1]);
  close(ends[1]);
  return watch({child}, ends[0], limit_s);
}

std::string own_path() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length < 0) throw io_error("readlink /proc/self/exe", std::strerror(errno));
  return std::string(path, length);
}

std::string telling_line(const std::string& output) {
  for (const std::string start : {"manyranks: error:", "bare MPI:"}) {
    const size_t at = output.find(start);
    if (at != std::string::npos) return output.substr(at, output.find('\n', at) - at);
  }
  return "";
}

}  // namespace manyranks
