#include <fmt/format.h>

#include "comm/host_group_parts.hpp"
#include "launch/errors.hpp"

namespace manyranks {

namespace {

// Slots large enough to amortise a step (2 ranks, 1 MiB: 64 us with 512 KiB, 108 us with 256), small enough that two of each rank stay
// in the shared cache.
size_t slot_bytes_for(int ranks) { return std::min<size_t>(size_t{256 << 10} * std::max(2, ranks), 1 << 20); }

}  // namespace

HostGroup::Control& HostGroup::control(int rank) const {
  return *reinterpret_cast<Control*>(segment_->data() + rank * (round_up(sizeof(Control), page) + 2 * small_bytes));
}
HostGroup::Bytes HostGroup::small_slot(int rank) const {
  return reinterpret_cast<Bytes>(&control(rank)) + round_up(sizeof(Control), page) + (sequence_ % 2) * small_bytes;
}
HostGroup::Bytes HostGroup::slot(int rank, uint64_t chunk) const {
  return segment_->data() + slots_ + (rank * 2 + chunk % 2) * slot_bytes_;
}
void HostGroup::commit_slots() {
  if (slots_committed_) return;
  segment_->commit(slots_ + rank_ * 2 * slot_bytes_, 2 * slot_bytes_);
  slots_committed_ = true;
}

HostGroup::HostGroup(std::shared_ptr<HostPeers> peers, std::vector<int> members, int rank, std::string name, double timeout_s,
                     const AllGather& all_gather, int creator)
    : peers_(std::move(peers)), members_(std::move(members)), rank_(rank), name_(std::move(name)), timeout_s_(timeout_s),
      patience_(Patience::for_ranks(peers_->size())), slot_bytes_(slot_bytes_for(size())) {
  const size_t controls = size() * (round_up(sizeof(Control), page) + 2 * small_bytes);
  // What every communicator uses comes first and is there at once (48 KiB for 2 ranks); slots and rings cost nothing until they are used.
  slots_ = controls + round_up(RingMailbox::head_bytes(size()), page);
  const size_t rings = slots_ + 2 * slot_bytes_ * size();
  segment_ = share_segment(rings + RingMailbox::ring_bytes(size()), slots_, "communicator '" + name_ + "'", rank_ == 0, creator, all_gather);
  mailbox_ = std::make_unique<RingMailbox>(segment_, controls, rings, rank_, size(), timeout_s_, patience_, [this](int peer) { return peers_->doing(members_[peer]); });
}

void HostGroup::begin(const Call& call, uint64_t in_place, uint64_t out_place) {
  call_ = call;
  ++sequence_;
  control(rank_).print[sequence_ % 2] = {sequence_, call.kind(), call.count, in_place, out_place};
  peers_->begin_call(name_, sequence_, call);
}

void HostGroup::end() { peers_->end_call(); }

void HostGroup::step() {
  control(rank_).step.store(++step_, std::memory_order_seq_cst);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_) control(peer).bell.ring();
}

void HostGroup::everybody() {
  int peer = 0;
  const auto all_here = [&] {
    for (; peer < size(); ++peer)
      if (peer != rank_ && control(peer).step.load(std::memory_order_seq_cst) < step_) return false;
    return true;
  };
  if (all_here()) return;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s_));
  if (!wait_until(control(rank_).bell, patience_, deadline, all_here)) give_up();
}

void HostGroup::arrive() {
  step();
  everybody();
  compare();
}

void HostGroup::compare() const {
  const auto& mine = control(rank_).print[sequence_ % 2];
  for (int peer = 0; peer < size(); ++peer) {
    const auto& theirs = control(peer).print[sequence_ % 2];
    if (theirs.sequence != mine.sequence || theirs.kind != mine.kind || theirs.count != mine.count) complain(peer);
  }
}

void HostGroup::complain(int peer) const {
  const auto& theirs = control(peer).print[sequence_ % 2];
  throw disagree_error(fmt::format("{} #{} of '{}'", name_of(call_.operation), sequence_, name_),
                       fmt::format("ranks disagree: rank {} called {}, rank {} called {} as call #{} of '{}'", rank_, call_.text(), peer,
                                   Call::from(theirs.kind, theirs.count).text(), theirs.sequence, name_),
                       "every rank must make the same calls in the same order");
}

void HostGroup::give_up() const {
  std::string missing;
  for (int peer = 0; peer < size(); ++peer)
    if (control(peer).step.load() < step_) missing += (missing.empty() ? "" : "; ") + peers_->doing(members_[peer]);
  throw lost_peer_error(fmt::format("{} #{} of '{}'", call_.text(), sequence_, name_), fmt::format("not everybody came within {:g} s: {}", timeout_s_, missing),
                        "look for a stopped or slow rank, or a larger --timeout-s");
}

uint64_t HostGroup::in_place(int rank) const { return control(rank).print[sequence_ % 2].in_place; }

bool HostGroup::share_places(bool in, bool out) const {
  const auto& mine = control(rank_).print[sequence_ % 2];
  for (int peer = 0; peer < size(); ++peer) {
    const auto& theirs = control(peer).print[sequence_ % 2];
    if (in && (!theirs.in_place || theirs.in_place != mine.in_place)) return false;
    if (out && (!theirs.out_place || theirs.out_place != mine.out_place)) return false;
  }
  return true;
}

void HostGroup::meet(const Call& call) {
  begin(call, 0, 0);
  arrive();
  end();
}

void HostGroup::exchange(Operation operation, void* out_, const void* in_, size_t count, Dtype dtype, int root) {
  const ExchangeShape shape(operation, root);
  auto* out = static_cast<Bytes>(out_);
  const auto* in = static_cast<const std::byte*>(in_);
  const size_t bytes = count * size_of(dtype), in_bytes = bytes * (shape.own_part_per_taker() ? size() : 1);
  const bool small = in_bytes <= small_bytes;
  // Who gives nothing names the memory it takes into: naming an allocation is also the proof of having mapped it.
  const uint64_t place = small ? 0 : shape.gives(rank_) ? peers_->place_of(in, in_bytes) : peers_->place_of(out, bytes);
  begin(Call{operation, dtype, ReduceOp::sum, root, count}, place, 0);
  if (shape.gives(rank_) && shape.takes(rank_)) copy_bytes(out + shape.out_part(rank_) * bytes, in + shape.in_part(rank_) * bytes, bytes);
  for (int taker = 0; taker < size(); ++taker)
    if (shape.gives(rank_) && taker != rank_ && shape.takes(taker)) count_sent(bytes);
  if (small) {
    if (shape.gives(rank_)) copy_bytes(small_slot(rank_), in, in_bytes);
    arrive();
    for (int giver = 0; shape.takes(rank_) && giver < size(); ++giver)
      if (giver != rank_ && shape.gives(giver)) copy_bytes(out + shape.out_part(giver) * bytes, small_slot(giver) + shape.in_part(rank_) * bytes, bytes);
    return end();
  }
  arrive();
  bool direct = place != 0;
  for (int peer = 0; peer < size(); ++peer) direct = direct && same_allocation(in_place(peer), place);
  if (direct) exchange_direct(shape, out, bytes);
  else exchange_staged(shape, out, in, bytes);
  end();
}

void HostGroup::exchange_direct(const ExchangeShape& shape, Bytes out, size_t bytes) {
  for (int k = 1; shape.takes(rank_) && k < size(); ++k) {
    const int giver = (rank_ + k) % size();
    if (shape.gives(giver)) copy_bytes(out + shape.out_part(giver) * bytes, peers_->at(in_place(giver), members_[giver]) + shape.in_part(rank_) * bytes, bytes);
  }
  step();
  everybody();
}

void HostGroup::exchange_staged(const ExchangeShape& shape, Bytes out, const std::byte* in, size_t bytes) {
  const int parts = shape.own_part_per_taker() ? size() : 1;
  const size_t per_chunk = slot_bytes_ / parts / 64 * 64;
  if (shape.gives(rank_)) commit_slots();
  for (size_t at = 0; at < bytes; at += per_chunk, ++chunk_) {
    const size_t n = std::min(per_chunk, bytes - at);
    for (int part = 0; shape.gives(rank_) && part < parts; ++part)
      if (parts == 1 || part != rank_) copy_bytes(slot(rank_, chunk_) + part * per_chunk, in + part * bytes + at, n);
    step();
    everybody();
    for (int k = 1; shape.takes(rank_) && k < size(); ++k) {
      const int giver = (rank_ + k) % size();
      if (shape.gives(giver)) copy_bytes(out + shape.out_part(giver) * bytes + at, slot(giver, chunk_) + shape.in_part(rank_) * per_chunk, n);
    }
  }
}

}  // namespace manyranks
