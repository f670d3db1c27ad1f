#include "comm/wire_mailbox.hpp"

#include <fmt/format.h>

namespace manyranks {

WireMailbox::WireMailbox(std::shared_ptr<Wire> wire, int channel, std::vector<int> world_ranks, int rank, double timeout_s, MatchingMailbox& host, std::vector<int> local)
    : MatchingMailbox(rank, static_cast<int>(world_ranks.size()), timeout_s), wire_(std::move(wire)), channel_(channel), world_ranks_(std::move(world_ranks)), host_(host),
      local_(std::move(local)), flights_(world_ranks_.size()) {}

std::shared_ptr<Message> WireMailbox::send(int to, int tag, const void* data, size_t count, Dtype dtype, std::shared_ptr<void> keep_alive) {
  if (local_[to] >= 0 && to != rank_) bytes_sent_.fetch_add(static_cast<int64_t>(count * size_of(dtype)), std::memory_order_relaxed);
  if (local_[to] >= 0) return host_.send(local_[to], tag, data, count, dtype, std::move(keep_alive));
  return MatchingMailbox::send(to, tag, data, count, dtype, std::move(keep_alive));
}

std::shared_ptr<Message> WireMailbox::recv(int from, int tag, void* data, size_t count, Dtype dtype, std::shared_ptr<void> keep_alive) {
  if (local_[from] >= 0) return host_.recv(local_[from], tag, data, count, dtype, std::move(keep_alive));
  return MatchingMailbox::recv(from, tag, data, count, dtype, std::move(keep_alive));
}

bool WireMailbox::push(int to) {
  auto& sends = peers_[to].sends;
  Flight& flight = flights_[to];
  bool moved = false;
  while (!sends.empty()) {
    Message& message = *sends.front();
    if (!flight.header_out) {
      flight.out = header_of(message);
      flight.header_out = wire_->send(world_ranks_[to], channel_, &flight.out, sizeof flight.out);
      if (message.bytes) flight.data_out = wire_->send(world_ranks_[to], channel_, message.data, message.bytes);
      moved = true;
    }
    if (!flight.header_out->test() || (flight.data_out && !flight.data_out->test())) break;
    flight.header_out.reset();
    flight.data_out.reset();
    message.done.store(true, std::memory_order_release);
    sends.pop_front();
    moved = true;
  }
  return moved;
}

bool WireMailbox::pull(int from) {
  Peer& peer = peers_[from];
  Flight& flight = flights_[from];
  bool moved = false;
  for (;;) {
    if (!peer.incoming) {
      if (!flight.header_in) {
        if (peer.recvs.empty()) break;
        flight.header_in = wire_->recv(world_ranks_[from], channel_, &flight.in, sizeof flight.in);
      }
      if (!flight.header_in->test()) break;
      flight.header_in.reset();
      match(from, flight.in);
      if (flight.in.bytes) flight.data_in = wire_->recv(world_ranks_[from], channel_, peer.incoming.data(), peer.incoming.bytes());
    }
    if (flight.data_in && !flight.data_in->test()) break;
    flight.data_in.reset();
    arrived(from);
    moved = true;
  }
  return moved;
}

void WireMailbox::wait(Message& message) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s_));
  const auto ready = [&] {
    if (!message.done.load(std::memory_order_acquire)) {
      host_.advance();
      advance();
    }
    return message.done.load(std::memory_order_acquire);
  };
  if (!poll_until(deadline, ready)) give_up(message, "the ranks may be on different hosts");
  if (message.error) std::rethrow_exception(message.error);
}

void WireMailbox::drain(const std::atomic<bool>& stop) {
  while (!stop && !(idle() && host_.idle()))
    poll_until(Clock::now() + std::chrono::milliseconds(50), [&] { return host_.advance() || advance() || stop; });
}

}  // namespace manyranks
