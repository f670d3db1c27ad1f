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
};

namespace {

// Addresses for 16 MiB in all: 4 MiB a pair of 2 ranks, 4 KiB at 64. Memory is taken for a pair when it first sends, 64 KiB and then
// twice as much each time, so that the communicators of a mesh, most of which never send, cost next to nothing. A message that fits leaves its sender at once;
// the rest of one that does not is moved by a thread that takes the core from the computation (activations of pipeline stages).
size_t capacity_for(int ranks) {
  size_t capacity = 4 << 20;
  while (capacity > 4096 && capacity * ranks * ranks > (size_t{16} << 20)) capacity /= 2;
  return capacity;
}

}  // namespace

size_t RingMailbox::head_bytes(int ranks) { return ranks * sizeof(Doorbell) + static_cast<size_t>(ranks) * ranks * sizeof(Ring); }
size_t RingMailbox::ring_bytes(int ranks) { return static_cast<size_t>(ranks) * ranks * capacity_for(ranks); }

RingMailbox::RingMailbox(std::shared_ptr<Segment> segment, size_t heads, size_t rings, int rank, int ranks, double timeout_s, Patience patience, std::function<std::string(int)> doing)
    : MatchingMailbox(rank, ranks, timeout_s), segment_(std::move(segment)), heads_(heads), rings_(rings), capacity_(capacity_for(ranks)), patience_(patience),
      doing_(std::move(doing)), committed_(ranks), header_sent_(ranks) {}

RingMailbox::Ring& RingMailbox::ring(int source, int destination) const {
  return *reinterpret_cast<Ring*>(segment_->data() + heads_ + peers_.size() * sizeof(Doorbell) + (source * peers_.size() + destination) * sizeof(Ring));
}
size_t RingMailbox::offset_of(int source, int destination) const { return rings_ + (source * peers_.size() + destination) * capacity_; }
Doorbell& RingMailbox::bell(int rank) const { return *reinterpret_cast<Doorbell*>(segment_->data() + heads_ + rank * sizeof(Doorbell)); }

void RingMailbox::commit(int to, size_t end) {
  size_t& there = committed_[to];
  if (end <= there) return;
  const size_t wanted = std::min(capacity_, std::max({end, 2 * there, size_t{64} << 10}));
  segment_->commit(offset_of(rank_, to) + there, wanted - there);
  there = wanted;
}

size_t RingMailbox::put(int peer, const std::byte* data, size_t bytes) {
  Ring& to = ring(rank_, peer);
  std::byte* bytes_of = segment_->data() + offset_of(rank_, peer);
  const uint64_t written = to.written.load(std::memory_order_relaxed);
  const size_t room = capacity_ - (written - to.taken.load(std::memory_order_seq_cst));
  bytes = std::min(bytes, room);
  const size_t at = written % capacity_, first = std::min(bytes, capacity_ - at);
  commit(peer, at + first);
  if (first) std::memcpy(bytes_of + at, data, first);
  if (bytes > first) std::memcpy(bytes_of, data + first, bytes - first);
  if (bytes) to.written.store(written + bytes, std::memory_order_seq_cst);
  return bytes;
}

size_t RingMailbox::take(int peer, std::byte* data, size_t bytes) {
  Ring& from = ring(peer, rank_);
  const std::byte* bytes_of = segment_->data() + offset_of(peer, rank_);
  const uint64_t taken = from.taken.load(std::memory_order_relaxed);
  bytes = std::min<size_t>(bytes, from.written.load(std::memory_order_seq_cst) - taken);
  const size_t at = taken % capacity_, first = std::min(bytes, capacity_ - at);
  if (first) std::memcpy(data, bytes_of + at, first);
  if (bytes > first) std::memcpy(data + first, bytes_of, bytes - first);
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
      put(to, reinterpret_cast<const std::byte*>(&header), sizeof header);
      header_sent_[to] = moved = true;
    }
    const size_t n = put(to, message.data + message.moved, message.bytes - message.moved);
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
      take(from, reinterpret_cast<std::byte*>(&header), sizeof header);
      moved = true;
      match(from, header);
    }
    const size_t n = take(from, peer.incoming.data() + peer.incoming.moved, peer.incoming.bytes() - peer.incoming.moved);
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
