#include "comm/ring_mailbox.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "launch/errors.hpp"

namespace manyranks {

// Written by one rank, read by one rank; the counts only grow.
struct RingMailbox::Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> taken;
  alignas(64) std::byte data[1];
};

namespace {

constexpr size_t ring_head = 128;
// 16 MiB in all, touched only as far as they are used: 4 MiB a pair of 2 ranks, 4 KiB at 64. A message that fits leaves its sender at once;
// the rest of one that does not is moved by a thread that takes the core from the computation (activations of pipeline stages).
size_t capacity_for(int ranks) {
  size_t capacity = 4 << 20;
  while (capacity > 4096 && capacity * ranks * ranks > (size_t{16} << 20)) capacity /= 2;
  return capacity;
}

}  // namespace

size_t RingMailbox::bytes_needed(int ranks) { return ranks * sizeof(Doorbell) + static_cast<size_t>(ranks) * ranks * (ring_head + capacity_for(ranks)); }

RingMailbox::RingMailbox(std::byte* memory, int rank, int ranks, double timeout_s, Patience patience, std::function<std::string(int)> doing)
    : MatchingMailbox(rank, ranks, timeout_s), memory_(memory), capacity_(capacity_for(ranks)), patience_(patience), doing_(std::move(doing)), header_sent_(ranks) {}

RingMailbox::Ring& RingMailbox::ring(int source, int destination) const {
  return *reinterpret_cast<Ring*>(memory_ + peers_.size() * sizeof(Doorbell) + (source * peers_.size() + destination) * (ring_head + capacity_));
}
Doorbell& RingMailbox::bell(int rank) const { return *reinterpret_cast<Doorbell*>(memory_ + rank * sizeof(Doorbell)); }

size_t RingMailbox::put(Ring& to, const std::byte* data, size_t bytes) {
  const uint64_t written = to.written.load(std::memory_order_relaxed);
  const size_t room = capacity_ - (written - to.taken.load(std::memory_order_seq_cst));
  bytes = std::min(bytes, room);
  const size_t at = written % capacity_, first = std::min(bytes, capacity_ - at);
  if (first) std::memcpy(to.data + at, data, first);
  if (bytes > first) std::memcpy(to.data, data + first, bytes - first);
  if (bytes) to.written.store(written + bytes, std::memory_order_seq_cst);
  return bytes;
}

size_t RingMailbox::take(Ring& from, std::byte* data, size_t bytes) {
  const uint64_t taken = from.taken.load(std::memory_order_relaxed);
  bytes = std::min<size_t>(bytes, from.written.load(std::memory_order_seq_cst) - taken);
  const size_t at = taken % capacity_, first = std::min(bytes, capacity_ - at);
  if (first) std::memcpy(data, from.data + at, first);
  if (bytes > first) std::memcpy(data + first, from.data, bytes - first);
  if (bytes) from.taken.store(taken + bytes, std::memory_order_seq_cst);
  return bytes;
}

bool RingMailbox::push(int to) {
  auto& sends = peers_[to].sends;
  Ring& out = ring(rank_, to);
  bool moved = false;
  while (!sends.empty()) {
    Message& message = *sends.front();
    if (!header_sent_[to]) {
      const Header header = header_of(message);
      const uint64_t used = out.written.load(std::memory_order_relaxed) - out.taken.load(std::memory_order_seq_cst);
      if (capacity_ - used < sizeof header) break;
      put(out, reinterpret_cast<const std::byte*>(&header), sizeof header);
      header_sent_[to] = moved = true;
    }
    const size_t n = put(out, message.data + message.moved, message.bytes - message.moved);
    moved = moved || n;
    message.moved += n;
    if (message.moved < message.bytes) break;
    message.done.store(true, std::memory_order_release);
    sends.pop_front();
    header_sent_[to] = false;
  }
  if (moved) bell(to).ring();
  return moved;
}

bool RingMailbox::pull(int from) {
  Peer& peer = peers_[from];
  Ring& in = ring(from, rank_);
  bool moved = false;
  for (;;) {
    if (!peer.incoming) {
      if (peer.recvs.empty()) break;  // nobody asks: the full ring holds the sender back
      Header header;
      if (in.written.load(std::memory_order_seq_cst) - in.taken.load(std::memory_order_relaxed) < sizeof header) break;
      take(in, reinterpret_cast<std::byte*>(&header), sizeof header);
      moved = true;
      match(from, header);
    }
    const size_t n = take(in, peer.incoming.data() + peer.incoming.moved, peer.incoming.bytes() - peer.incoming.moved);
    moved = moved || n;
    peer.incoming.moved += n;
    if (peer.incoming.moved < peer.incoming.bytes()) break;
    arrived(from);
  }
  if (moved) bell(from).ring();
  return moved;
}

void RingMailbox::wait(Message& message) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s_));
  const auto ready = [&] {
    if (!message.done.load(std::memory_order_acquire)) advance();
    return message.done.load(std::memory_order_acquire);
  };
  if (!wait_until(bell(rank_), patience_, deadline, ready)) give_up(message, doing_(message.peer));
  if (message.error) std::rethrow_exception(message.error);
}

void RingMailbox::drain(const std::atomic<bool>& stop) {
  while (!stop && !idle()) wait_until(bell(rank_), patience_, Clock::now(), [&] { return advance() || idle(); });
}

}  // namespace manyranks
