#include "measure/line_peer.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "launch/errors.hpp"

extern char** environ;

namespace manyranks {

LinePeer::LinePeer(std::vector<std::string> words, std::vector<std::string> variables, double timeout_s)
    : name_(words.size() > 1 ? words[1].substr(words[1].rfind('/') + 1) : words.at(0)), timeout_s_(timeout_s) {
  std::signal(SIGPIPE, SIG_IGN);  // a rival that ended is an error line, not a silent death
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) throw io_error("pipe", std::strerror(errno));
  for (char** variable = environ; *variable; ++variable)
    if (std::strncmp(*variable, "OMPI_", 5) != 0 && std::strncmp(*variable, "PMIX_", 5) != 0) variables.emplace_back(*variable);
  std::vector<char*> arguments, environment;
  for (auto& word : words) arguments.push_back(word.data());
  for (auto& variable : variables) environment.push_back(variable.data());
  arguments.push_back(nullptr), environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], 0);
  posix_spawn_file_actions_adddup2(&actions, from[1], 1);
  const int error = posix_spawn(&child_, arguments[0], &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]), close(from[1]);
  to_ = to[1], from_ = from[0];
  if (error) child_ = -1;  // said by the first answer: none
}

LinePeer::~LinePeer() {
  close(to_), close(from_);
  for (int i = 0; child_ > 0 && i < 40; ++i) {
    if (waitpid(child_, nullptr, WNOHANG) != 0) return;
    usleep(50'000);
  }
  if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
}

std::string LinePeer::answer() {
  for (;;) {
    if (const size_t end = text_.find('\n'); end != std::string::npos) {
      const std::string line = text_.substr(0, end);
      text_.erase(0, end + 1);
      return line;
    }
    pollfd ready{from_, POLLIN, 0};
    const int event = poll(&ready, 1, static_cast<int>(timeout_s_ * 1000));
    if (event < 0 && errno == EINTR) continue;
    char buffer[256];
    const ssize_t n = event > 0 ? read(from_, buffer, sizeof buffer) : 0;
    if (n <= 0) return "";
    text_.append(buffer, static_cast<size_t>(n));
  }
}

std::string LinePeer::ask(const std::string& line) {
  const std::string sent = line + "\n";
  if (write(to_, sent.data(), sent.size()) != static_cast<ssize_t>(sent.size())) throw io_error(name_, "its process does not listen", "its own words above");
  const std::string said = answer();
  if (said.empty()) throw lost_peer_error(name_ + ": " + line, "no answer: it has ended, or takes longer than --timeout-s", "its own words above");
  return said;
}

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

}  // namespace manyranks
