#include "comm/monitor.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <vector>

namespace manyranks {

Monitor::Monitor(std::shared_ptr<HostPeers> peers, Actions actions)
    : peers_(std::move(peers)), actions_(std::move(actions)), stop_file_(eventfd(0, EFD_CLOEXEC)), thread_([this] { watch(); }) {}

Monitor::~Monitor() {
  const uint64_t one = 1;
  if (write(stop_file_, &one, sizeof one) != sizeof one) std::terminate();  // an eventfd takes 8 bytes, or the world is broken
  thread_.join();
  close(stop_file_);
}

void Monitor::watch() {
  std::vector<pollfd> files{{stop_file_, POLLIN, 0}};
  std::vector<int> index{-1};
  for (int peer = 0; peer < peers_->size(); ++peer) {
    if (peers_->death_file(peer) < 0) continue;
    files.push_back({peers_->death_file(peer), POLLIN, 0});
    index.push_back(peer);
  }
  for (;;) {
    poll(files.data(), files.size(), 100);
    if (files[0].revents) return;
    if (const int code = peers_->failure()) {
      // If it was this process, its main thread is speaking.
      if (peers_->failed_rank() != peers_->world_rank(peers_->index())) actions_.follow(code);
      continue;
    }
    for (size_t i = 1; i < files.size(); ++i) {
      if (!files[i].revents || files[i].fd < 0) continue;
      files[i].fd = -1;  // poll skips it from now on
      if (peers_->finished(index[i]) || peers_->failure()) continue;
      actions_.end_job(lost_peer_error("watchdog", fmt::format("rank {} died: {}", peers_->world_rank(index[i]), peers_->doing(index[i])),
                                       "look at its last lines; out of memory leaves none (dmesg)"));
    }
    if (const int code = actions_.ended_elsewhere ? actions_.ended_elsewhere() : 0) actions_.follow(code);
  }
}

}  // namespace manyranks
