#include "comm/matching_mailbox.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

std::shared_ptr<Message> make_message(bool sending, int peer, int tag, void* data, size_t count, Dtype dtype) {
  auto message = std::make_shared<Message>();
  message->sending = sending;
  message->peer = peer;
  message->tag = tag;
  message->dtype = dtype;
  message->bytes = count * size_of(dtype);
  message->data = static_cast<std::byte*>(data);
  return message;
}

}  // namespace

std::shared_ptr<Message> MatchingMailbox::send(int to, int tag, const void* data, size_t count, Dtype dtype) {
  auto message = make_message(true, to, tag, const_cast<void*>(data), count, dtype);
  if (to != rank_) bytes_sent_.fetch_add(static_cast<int64_t>(message->bytes), std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  peers_[to].sends.push_back(message);
  push(to);
  return message;
}

std::shared_ptr<Message> MatchingMailbox::recv(int from, int tag, void* data, size_t count, Dtype dtype) {
  auto message = make_message(false, from, tag, data, count, dtype);
  std::lock_guard lock(mutex_);
  Peer& peer = peers_[from];
  for (auto& stray : peer.strays) {
    if (stray->claimed_by || stray->header.tag != tag) continue;
    if (!fits(*message, stray->header)) return message;
    stray->claimed_by = message;
    if (stray != peer.incoming.stray) deliver(from, *stray);
    return message;
  }
  peer.recvs.push_back(message);
  pull(from);
  return message;
}

bool MatchingMailbox::fits(Message& message, const Header& header) const {
  if (header.bytes == static_cast<int64_t>(message.bytes) && header.dtype == static_cast<int64_t>(message.dtype)) return true;
  const auto sent = static_cast<Dtype>(header.dtype);
  message.error = std::make_exception_ptr(disagree_error(
      "recv", fmt::format("ranks disagree: rank {} sent {} x {} with tag {}, rank {} receives {} x {}", message.peer, header.bytes / size_of(sent), name_of(sent),
                          header.tag, rank_, message.bytes / size_of(message.dtype), name_of(message.dtype)),
      "the same size and dtype on both sides"));
  message.done.store(true, std::memory_order_release);
  return false;
}

void MatchingMailbox::match(int from, const Header& header) {
  Peer& peer = peers_[from];
  peer.incoming = {};
  const auto asked = std::find_if(peer.recvs.begin(), peer.recvs.end(), [&](const auto& message) { return message->tag == header.tag; });
  if (asked != peer.recvs.end()) {
    const auto message = *asked;
    peer.recvs.erase(asked);
    if (fits(*message, header)) {
      peer.incoming.message = message;
      return;
    }
  }
  peer.incoming.stray = std::make_shared<Stray>();  // also what does not fit: its bytes must leave the carrier all the same
  peer.incoming.stray->header = header;
  peer.incoming.stray->data.resize(header.bytes);
  peer.strays.push_back(peer.incoming.stray);
}

void MatchingMailbox::arrived(int from) {
  const Incoming incoming = std::move(peers_[from].incoming);
  peers_[from].incoming = {};
  if (incoming.message) incoming.message->done.store(true, std::memory_order_release);
  else if (incoming.stray->claimed_by) deliver(from, *incoming.stray);
}

// A stray that is complete and claimed.
void MatchingMailbox::deliver(int from, Stray& stray) {
  if (!stray.data.empty()) std::memcpy(stray.claimed_by->data, stray.data.data(), stray.data.size());
  stray.claimed_by->done.store(true, std::memory_order_release);
  std::erase_if(peers_[from].strays, [&](const auto& other) { return other.get() == &stray; });
}

bool MatchingMailbox::advance_locked() {
  bool moved = false;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (!peers_[peer].sends.empty()) moved |= push(static_cast<int>(peer));
    if (!peers_[peer].recvs.empty() || peers_[peer].incoming) moved |= pull(static_cast<int>(peer));
  }
  return moved;
}

bool MatchingMailbox::advance() {
  std::lock_guard lock(mutex_);
  return advance_locked();
}

bool MatchingMailbox::idle() {
  std::lock_guard lock(mutex_);
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.sends.empty() && peer.recvs.empty() && !peer.incoming; });
}

void MatchingMailbox::give_up(const Message& message, const std::string& doing) const {
  throw lost_peer_error(fmt::format("{} of {} x {}, tag {}", message.sending ? "send" : "recv", message.bytes / size_of(message.dtype), name_of(message.dtype), message.tag),
                        fmt::format("{} rank {} within {:g} s: {}", message.sending ? "not taken by" : "nothing came from", message.peer, timeout_s_, doing),
                        "look for a stopped or slow rank, a missing send or recv, or a larger --timeout-s");
}

}  // namespace manyranks
