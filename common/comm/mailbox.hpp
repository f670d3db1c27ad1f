// Point-to-point messages, without LibTorch: matched by (source, tag), in order. Several may be under way at once, posted in
// any order on the two sides: each moves on its own whenever somebody calls advance().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

#include "comm/dtype.hpp"

namespace manyranks {

struct Message {
  bool sending = false;
  int peer = 0;
  int tag = 0;
  Dtype dtype = Dtype::uint8;
  std::byte* data = nullptr;  // read only if sending
  size_t bytes = 0;
  size_t moved = 0;
  std::exception_ptr error;       // valid once done
  std::shared_ptr<void> keep_alive;
  std::atomic<bool> done{false};
};

class Mailbox {
 public:
  virtual ~Mailbox() = default;
  // The memory must live until `done`.
  virtual std::shared_ptr<Message> send(int to, int tag, const void* data, size_t count, Dtype dtype) = 0;
  virtual std::shared_ptr<Message> recv(int from, int tag, void* data, size_t count, Dtype dtype) = 0;
  // Waits on the caller's thread, moving all messages on; throws after the time limit.
  virtual void wait(Message& message) = 0;
  // Moves messages on until none is left, sleeping when nothing can move; for the background thread. Ends early on `stop`.
  virtual void drain(const std::atomic<bool>& stop) = 0;

  int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  void reset_bytes_sent() { bytes_sent_ = 0; }

 protected:
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace manyranks
