#include "comm/wire.hpp"

#include <fmt/format.h>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

constexpr size_t piece = size_t{256} << 20;  // the time limit is for each of them, not for a message of many gigabytes

}  // namespace

void WireTransport::finish(Wire::Request& request, int peer, bool sending) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s_));
  if (request.wait(deadline)) return;
  throw lost_peer_error(doing, fmt::format("{} rank {}, on another host, within {:g} s", sending ? "nothing was taken by" : "nothing came from", world_ranks_[peer], timeout_s_),
                        "look for a stopped rank, a missing call, a cut link, or a larger --timeout-s");
}

void WireTransport::send(int to, const void* data, size_t bytes) { send_recv(to, data, bytes, -1, nullptr, 0); }
void WireTransport::recv(int from, void* data, size_t bytes) { send_recv(-1, nullptr, 0, from, data, bytes); }

void WireTransport::send_recv(int to, const void* out, size_t out_bytes, int from, void* in, size_t in_bytes) {
  for (size_t at = 0; at == 0 || at < std::max(out_bytes, in_bytes); at += piece) {
    std::unique_ptr<Wire::Request> receiving, sending;
    if (from >= 0 && at < in_bytes) receiving = wire_->recv(world_ranks_[from], channel_, static_cast<std::byte*>(in) + at, std::min(piece, in_bytes - at));
    if (to >= 0 && at < out_bytes) sending = wire_->send(world_ranks_[to], channel_, static_cast<const std::byte*>(out) + at, std::min(piece, out_bytes - at));
    if (receiving) finish(*receiving, from, false);
    if (sending) finish(*sending, to, true);
  }
  if (to >= 0) bytes_sent_ += out_bytes;
}

}  // namespace manyranks
