// torch.distributed over Gloo, what people use today between CPUs: gloo_peer.py in a process beside each rank, driven through two pipes.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "contenders.hpp"
#include "launch/process.hpp"

extern char** environ;

namespace manyranks {
namespace {

// A child that answers each line with a line. Its standard error is ours.
class LinePeer {
 public:
  LinePeer(std::vector<std::string> argv, double timeout_s) : timeout_s_(timeout_s) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) throw io_error("pipe", std::strerror(errno));
    std::vector<char*> words;
    for (auto& word : argv) words.push_back(word.data());
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    const int error = posix_spawn(&child_, words[0], &actions, nullptr, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]), close(from[1]);
    to_ = to[1], from_ = from[0];
    if (error) child_ = -1;  // said by the first answer: none
  }
  ~LinePeer() {
    close(to_), close(from_);  // the child's input ends, and so does the child
    for (int i = 0; child_ > 0 && i < 40; ++i) {
      if (waitpid(child_, nullptr, WNOHANG) != 0) return;
      usleep(50'000);
    }
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
  }
  LinePeer(const LinePeer&) = delete;
  LinePeer& operator=(const LinePeer&) = delete;

  std::string answer() {  // empty: it has ended, or takes longer than the time limit
    for (;;) {
      if (const size_t end = text_.find('\n'); end != std::string::npos) {
        const std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      pollfd ready{from_, POLLIN, 0};
      char buffer[256];
      if (poll(&ready, 1, static_cast<int>(timeout_s_ * 1000)) <= 0) return "";
      const ssize_t n = read(from_, buffer, sizeof buffer);
      if (n <= 0) return "";
      text_.append(buffer, n);
    }
  }
  std::string ask(const std::string& line) {
    if (write(to_, (line + "\n").c_str(), line.size() + 1) < 0) throw io_error("PyTorch's Gloo", std::strerror(errno));
    const std::string said = answer();
    if (said.empty()) throw lost_peer_error("PyTorch's Gloo: " + line, "gloo_peer.py gave no answer", "its own words above, or --only without PyTorch");
    return said;
  }

 private:
  double timeout_s_;
  pid_t child_ = -1;
  int to_ = -1, from_ = -1;
  std::string text_;
};

class PyTorchGloo : public Contender {
 public:
  explicit PyTorchGloo(std::unique_ptr<LinePeer> peer) : peer_(std::move(peer)) {}
  std::string name() const override { return "PyTorch Gloo"; }
  std::string transport() const override { return "Gloo (tcp)"; }
  bool can(Collective collective, bool in_place) const override { return collective == Collective::all_reduce && in_place; }
  void run(Collective collective, torch::Tensor out, torch::Tensor in) override { seconds(collective, out, in, 1); }
  double seconds(Collective, torch::Tensor out, torch::Tensor, int64_t iterations) override {
    return std::stod(peer_->ask(fmt::format("run {} {}", out.numel(), iterations)));
  }
  std::optional<int64_t> wrong(Collective, int64_t count) override { return std::stoll(peer_->ask(fmt::format("check {}", count))); }

 private:
  std::unique_ptr<LinePeer> peer_;
};

}  // namespace

std::vector<std::unique_ptr<Contender>> pytorch_contenders(Process& process) {
  std::vector<std::unique_ptr<Contender>> list;
  const auto without = [&](const std::string& why) {
    if (process.is_root()) fmt::print("without PyTorch's Gloo: {}\n", why);
    return std::move(list);
  };
  if (process.nodes() > 1) return without("more than one node");
  char folder[] = "/tmp/manyranks-gloo-XXXXXX";  // where the ranks of torch.distributed find each other
  if (process.is_root() && !mkdtemp(folder)) throw io_error("mkdtemp", std::strerror(errno));
  const std::string meeting = process.rendezvous().all_gather(folder)[0];
  auto peer = std::make_unique<LinePeer>(std::vector<std::string>{MANYRANKS_PYTHON, MANYRANKS_GLOO_PEER, meeting + "/store", std::to_string(process.rank()), std::to_string(process.world_size())},
                                         process.options().timeout_s);
  const std::string said = peer->answer();
  bool all = true;
  for (const auto& other : process.rendezvous().all_gather(said)) all = all && other.rfind("ready", 0) == 0;
  if (process.is_root()) unlink((meeting + "/store").c_str()), rmdir(meeting.c_str());
  if (!all) return without(said.empty() ? "gloo_peer.py did not start; ./scripts/setup.sh --rivals" : said);
  list.push_back(std::make_unique<PyTorchGloo>(std::move(peer)));
  return list;
}

}  // namespace manyranks
