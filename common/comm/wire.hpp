// What carries bytes between hosts: MPI or Gloo. Requests are polled or waited for with a time limit; nothing in here blocks without
// one. `channel` keeps communicators, and messages from collectives, apart; within (source, destination, channel) order is kept.
#pragma once

#include <time.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/algorithms.hpp"  // Transport
#include "comm/doorbell.hpp"    // Clock

namespace manyranks {

class Wire {
 public:
  class Request {
   public:
    virtual ~Request() = default;
    virtual bool test() = 0;
    virtual bool wait(Clock::time_point deadline) = 0;  // false: the time is up
  };
  virtual ~Wire() = default;
  virtual std::string name() const = 0;
  // Ranks are world ranks. The memory must live until the request is done. Any number of bytes, also more than a library takes at once.
  virtual std::unique_ptr<Request> send(int to, int channel, const void* data, size_t bytes) = 0;
  virtual std::unique_ptr<Request> recv(int from, int channel, void* data, size_t bytes) = 0;

  int next_channel = 0;  // the first that no communicator of this process uses
  size_t largest_piece = size_t{1} << 30;  // that the library is given at once: MPI counts in int. Tests make it smaller
};

// Polls with back-off: at once while it may come at once, then more and more rarely, so that waiting leaves the core to others.
template <class Done>
bool poll_until(Clock::time_point deadline, Done&& done) {
  for (int i = 0; i < 100; ++i)
    if (done()) return true;
  for (long pause_ns = 1000;; pause_ns = std::min(pause_ns * 2, 200'000L)) {
    if (done()) return true;
    if (Clock::now() >= deadline) return false;
    const timespec pause{0, pause_ns};
    nanosleep(&pause, nullptr);
  }
}

// Some ranks of the world as a Transport for the algorithms. Counts the bytes it sends.
class WireTransport : public Transport {
 public:
  WireTransport(std::shared_ptr<Wire> wire, int channel, std::vector<int> world_ranks, int rank, double timeout_s)
      : wire_(std::move(wire)), channel_(channel), world_ranks_(std::move(world_ranks)), rank_(rank), timeout_s_(timeout_s) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }
  void send(int to, const void* data, size_t bytes) override;
  void recv(int from, void* data, size_t bytes) override;
  void send_recv(int to, const void* out, size_t out_bytes, int from, void* in, size_t in_bytes) override;

  size_t take_bytes_sent() { return std::exchange(bytes_sent_, 0); }
  std::string doing;  // for error lines

 private:
  void finish(Wire::Request& request, int peer, bool sending);
  std::shared_ptr<Wire> wire_;
  int channel_;
  std::vector<int> world_ranks_;
  int rank_;
  double timeout_s_;
  size_t bytes_sent_ = 0;
};

}  // namespace manyranks
