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
// 256 KiB a pair on small hosts; 64 ranks make 4096 pairs.
size_t capacity_for(int ranks) {
  size_t capacity = 256 << 10;
  while (capacity > 4096 && capacity * ranks * ranks > (size_t{16} << 20)) capacity /= 2;
  return capacity;
}

}  // namespace

size_t RingMailbox::bytes_needed(int ranks) { return ranks * sizeof(Doorbell) + static_cast<size_t>(ranks) * ranks * (ring_head + capacity_for(ranks)); }

RingMailbox::RingMailbox(std::byte* memory, int rank, int ranks, double timeout_s, Patience patience, std::function<std::string(int)> doing)
    : memory_(memory), rank_(rank), ranks_(ranks), capacity_(capacity_for(ranks)), timeout_s_(timeout_s), patience_(patience), doing_(std::move(doing)), peers_(ranks) {}

RingMailbox::~RingMailbox() = default;

RingMailbox::Ring& RingMailbox::ring(int source, int destination) const {
  return *reinterpret_cast<Ring*>(memory_ + ranks_ * sizeof(Doorbell) + (static_cast<size_t>(source) * ranks_ + destination) * (ring_head + capacity_));
}
Doorbell& RingMailbox::bell(int rank) const { return *reinterpret_cast<Doorbell*>(memory_ + rank * sizeof(Doorbell)); }

std::shared_ptr<Message> RingMailbox::send(int to, int tag, const void* data, size_t count, Dtype dtype) {
  auto message = std::make_shared<Message>();
  message->sending = true;
  message->peer = to, message->tag = tag, message->dtype = dtype, message->bytes = count * size_of(dtype);
  message->data = static_cast<std::byte*>(const_cast<void*>(data));
  std::lock_guard lock(mutex_);
  peers_[to].sends.push_back(message);
  if (to != rank_) bytes_sent_.fetch_add(static_cast<int64_t>(message->bytes), std::memory_order_relaxed);
  push(to);
  return message;
}

std::shared_ptr<Message> RingMailbox::recv(int from, int tag, void* data, size_t count, Dtype dtype) {
  auto message = std::make_shared<Message>();
  message->peer = from, message->tag = tag, message->dtype = dtype, message->bytes = count * size_of(dtype);
  message->data = static_cast<std::byte*>(data);
  std::lock_guard lock(mutex_);
  Peer& peer = peers_[from];
  for (auto& stray : peer.strays) {
    if (stray->claimed_by || stray->header.tag != tag) continue;
    if (!fits(*message, stray->header)) return message;
    stray->claimed_by = message;
    if (stray != peer.incoming_stray) deliver(from, *stray);
    return message;
  }
  peer.recvs.push_back(message);
  pull(from);
  return message;
}

// A stray that is complete and claimed.
void RingMailbox::deliver(int from, Stray& stray) {
  std::memcpy(stray.claimed_by->data, stray.data.data(), stray.data.size());
  stray.claimed_by->done.store(true, std::memory_order_release);
  auto& strays = peers_[from].strays;
  std::erase_if(strays, [&](const auto& other) { return other.get() == &stray; });
}

bool RingMailbox::fits(Message& message, const Header& header) const {
  message.matched = true;
  if (header.bytes == static_cast<int64_t>(message.bytes) && header.dtype == static_cast<int64_t>(message.dtype)) return true;
  const auto sent = static_cast<Dtype>(header.dtype);
  message.error = std::make_exception_ptr(disagree_error(
      "recv", fmt::format("ranks disagree: rank {} sent {} x {} with tag {}, rank {} receives {} x {}", message.peer, header.bytes / size_of(sent), name_of(sent),
                          header.tag, rank_, message.bytes / size_of(message.dtype), name_of(message.dtype)),
      "the same size and dtype on both sides"));
  message.done.store(true, std::memory_order_release);
  return false;
}

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
  Peer& peer = peers_[to];
  Ring& out = ring(rank_, to);
  bool moved = false;
  while (!peer.sends.empty()) {
    Message& message = *peer.sends.front();
    if (!peer.header_sent) {
      const Header header{message.tag, static_cast<int64_t>(message.dtype), static_cast<int64_t>(message.bytes)};
      const uint64_t used = out.written.load(std::memory_order_relaxed) - out.taken.load(std::memory_order_seq_cst);
      if (capacity_ - used < sizeof header) break;
      put(out, reinterpret_cast<const std::byte*>(&header), sizeof header);
      peer.header_sent = moved = true;
    }
    const size_t n = put(out, message.data + message.moved, message.bytes - message.moved);
    moved = moved || n;
    message.moved += n;
    if (message.moved < message.bytes) break;
    message.done.store(true, std::memory_order_release);
    peer.sends.pop_front();
    peer.header_sent = false;
  }
  if (moved) bell(to).ring();
  return moved;
}

void RingMailbox::match(int from, const Header& header) {
  Peer& peer = peers_[from];
  for (auto message = peer.recvs.begin(); message != peer.recvs.end(); ++message) {
    if ((*message)->tag != header.tag) continue;
    const bool good = fits(**message, header);
    if (good) peer.incoming = *message;
    peer.recvs.erase(message);
    if (good) return;
    break;  // its bytes must leave the ring all the same
  }
  peer.incoming_stray = std::make_shared<Stray>();
  peer.incoming_stray->header = header;
  peer.incoming_stray->data.resize(header.bytes);
  peer.strays.push_back(peer.incoming_stray);
}

bool RingMailbox::pull(int from) {
  Peer& peer = peers_[from];
  Ring& in = ring(from, rank_);
  bool moved = false;
  for (;;) {
    if (!peer.incoming && !peer.incoming_stray) {
      if (peer.recvs.empty()) break;  // nobody asks: the full ring holds the sender back
      Header header;
      if (in.written.load(std::memory_order_seq_cst) - in.taken.load(std::memory_order_relaxed) < sizeof header) break;
      take(in, reinterpret_cast<std::byte*>(&header), sizeof header);
      moved = true;
      match(from, header);
    }
    std::byte* data = peer.incoming ? peer.incoming->data : peer.incoming_stray->data.data();
    size_t& progress = peer.incoming ? peer.incoming->moved : peer.incoming_stray->moved;
    const size_t bytes = peer.incoming ? peer.incoming->bytes : peer.incoming_stray->data.size();
    const size_t n = take(in, data + progress, bytes - progress);
    moved = moved || n;
    progress += n;
    if (progress < bytes) break;
    if (peer.incoming) {
      peer.incoming->done.store(true, std::memory_order_release);
      peer.incoming.reset();
    } else {
      const auto stray = std::move(peer.incoming_stray);
      peer.incoming_stray.reset();
      if (stray->claimed_by) deliver(from, *stray);
    }
  }
  if (moved) bell(from).ring();
  return moved;
}

bool RingMailbox::advance() {
  bool moved = false;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (!peers_[peer].sends.empty()) moved |= push(peer);
    if (!peers_[peer].recvs.empty() || peers_[peer].incoming || peers_[peer].incoming_stray) moved |= pull(peer);
  }
  return moved;
}

bool RingMailbox::idle() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.sends.empty() && peer.recvs.empty() && !peer.incoming && !peer.incoming_stray; });
}

void RingMailbox::wait(Message& message) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s_));
  const auto ready = [&] {
    if (message.done.load(std::memory_order_acquire)) return true;
    std::lock_guard lock(mutex_);
    advance();
    return message.done.load(std::memory_order_acquire);
  };
  if (wait_until(bell(rank_), patience_, deadline, ready)) {
    if (message.error) std::rethrow_exception(message.error);
    return;
  }
  throw lost_peer_error(fmt::format("{} {} x {}, tag {}", message.sending ? "send of" : "recv of", message.bytes / size_of(message.dtype), name_of(message.dtype), message.tag),
                        fmt::format("{} rank {} within {:g} s: {}", message.sending ? "not taken by" : "nothing came from", message.peer, timeout_s_, doing_(message.peer)),
                        "look for a stopped or slow rank, a missing send or recv, or a larger --timeout-s");
}

void RingMailbox::drain(const std::atomic<bool>& stop) {
  bool empty = false;
  const auto ready = [&] {
    std::lock_guard lock(mutex_);
    const bool moved = advance();
    empty = idle();
    return moved || empty;
  };
  while (!empty && !stop) wait_until(bell(rank_), patience_, Clock::now(), ready);
}

}  // namespace manyranks
