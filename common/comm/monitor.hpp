// Watches the peers of this host while the main thread computes: one that died, or one that ended the job, ends this process
// too, with the same exit code. Sleeps in poll(); costs nothing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "comm/host_peers.hpp"
#include "launch/errors.hpp"

namespace manyranks {

class Monitor {
 public:
  struct Actions {
    std::function<void(const Error&)> end_job;  // I found it: say it and end the job
    std::function<void(int code)> follow;       // another rank said it already
    std::function<int()> ended_elsewhere;       // exit code from another host, 0: none; may be empty
  };
  Monitor(std::shared_ptr<HostPeers> peers, Actions actions);
  ~Monitor();

 private:
  void watch();
  std::shared_ptr<HostPeers> peers_;
  Actions actions_;
  int stop_file_;  // an eventfd
  std::thread thread_;
};

}  // namespace manyranks
