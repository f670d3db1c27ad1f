#include "comm/host_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/reduce.hpp"
#include "launch/errors.hpp"

namespace manyranks {

// What a rank shows to its peers. Two prints, used in turn: a rank that is one call ahead must not overwrite what a slow peer
// still compares; it cannot be two ahead.
struct HostGroup::Control {
  struct Print {
    uint64_t sequence, kind, count, in_place, out_place;
  };
  alignas(64) std::atomic<uint64_t> step;
  Print print[2];
  alignas(64) Doorbell bell;
};

namespace {

constexpr size_t page = 4096;
size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Slots large enough to amortise a step, small enough that two of each rank stay in the shared cache.
size_t slot_bytes_for(int ranks) { return std::min<size_t>(size_t{128 << 10} * std::max(2, ranks), 1 << 20); }

// Whole elements, and whole cache lines, so that no two ranks write to one.
struct Slices {
  Slices(size_t count, int ranks, size_t element) : count_(count), each_(round_up((count + ranks - 1) / ranks, std::max<size_t>(1, 64 / element))) {}
  size_t begin(int rank) const { return std::min(count_, rank * each_); }
  size_t size(int rank) const { return begin(rank + 1) - begin(rank); }

 private:
  size_t count_, each_;
};

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

HostGroup::Control& HostGroup::control(int rank) const {
  return *reinterpret_cast<Control*>(segment_->data() + rank * (round_up(sizeof(Control), page) + 2 * small_bytes));
}
HostGroup::Bytes HostGroup::small_slot(int rank) const {
  return reinterpret_cast<Bytes>(&control(rank)) + round_up(sizeof(Control), page) + (sequence_ % 2) * small_bytes;
}
HostGroup::Bytes HostGroup::slot(int rank, uint64_t chunk) const {
  const size_t controls = size() * (round_up(sizeof(Control), page) + 2 * small_bytes);
  return segment_->data() + controls + (rank * 2 + chunk % 2) * slot_bytes_;
}

HostGroup::HostGroup(std::shared_ptr<HostPeers> peers, std::vector<int> members, int rank, std::string name, double timeout_s,
                     const AllGather& all_gather, int creator)
    : peers_(std::move(peers)), members_(std::move(members)), rank_(rank), name_(std::move(name)), timeout_s_(timeout_s),
      patience_(Patience::for_ranks(peers_->size())), slot_bytes_(slot_bytes_for(size())) {
  const size_t controls = size() * (round_up(sizeof(Control), page) + 2 * small_bytes);
  const size_t slots = 2 * slot_bytes_ * size();
  segment_ = share_segment(controls + slots + RingMailbox::bytes_needed(size()), "communicator '" + name_ + "'", rank_ == 0, creator, all_gather);
  mailbox_ = std::make_unique<RingMailbox>(segment_->data() + controls + slots, rank_, size(), timeout_s_, patience_, [this](int peer) { return peers_->doing(members_[peer]); });
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

void HostGroup::all_reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op) {
  const size_t bytes = count * size_of(dtype);
  const Call call{Operation::all_reduce, dtype, op, 0, count};
  if (bytes <= small_bytes) {
    begin(call, 0, 0);
    copy_bytes(small_slot(rank_), in, bytes);
    arrive();
    const void* inputs[size() + 1];
    for (int peer = 0; peer < size(); ++peer) inputs[peer] = small_slot(peer);
    manyranks::reduce(out, inputs, size(), count, dtype, op);
    count_sent(bytes * (size() - 1));
    return end();
  }
  begin(call, peers_->place_of(in, bytes), peers_->place_of(out, bytes));
  reduce_staged(out, in, count, dtype, op, -1);
  end();
}

void HostGroup::reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op, int root) {
  begin(Call{Operation::reduce, dtype, op, root, count}, 0, 0);
  reduce_staged(out, in, count, dtype, op, root);
  end();
}

// root < 0: everybody gets the result. A chunk has one slice per rank. A rank stages the slices that others reduce, reduces its
// own from its peers' slots and its own memory, and leaves the result in the one slice of its slot that it did not stage.
// Bytes through memory for S bytes: 2S read + 2S written, where staging everything would take 3S + 2.5S.
void HostGroup::reduce_staged(void* out_, const void* in_, size_t count, Dtype dtype, ReduceOp op, int root) {
  const auto* in = static_cast<const std::byte*>(in_);
  auto* out = static_cast<Bytes>(out_);
  const size_t element = size_of(dtype), per_chunk = slot_bytes_ / element;
  const uint64_t first = chunk_, chunks = std::max<size_t>(1, (count + per_chunk - 1) / per_chunk);
  const bool takes = root < 0 || root == rank_;
  const auto slices_of = [&](uint64_t c) { return Slices(std::min(per_chunk, count - std::min(count, c * per_chunk)), size(), element); };
  const auto stage = [&](uint64_t c) {
    const Slices slices = slices_of(c);
    const auto* from = in + c * per_chunk * element;
    Bytes to = slot(rank_, first + c);
    const size_t begin = slices.begin(rank_) * element, end = slices.begin(rank_ + 1) * element, all = slices.begin(size()) * element;
    copy_bytes(to, from, begin);
    copy_bytes(to + end, from + end, all - end);
    count_sent(all - (end - begin));
  };
  const auto reduce_mine = [&](uint64_t c) {
    const Slices slices = slices_of(c);
    const size_t at = slices.begin(rank_) * element, n = slices.size(rank_);
    const void* inputs[size() + 1];
    for (int peer = 0; peer < size(); ++peer)
      inputs[peer] = peer == rank_ ? in + c * per_chunk * element + at : slot(peer, first + c) + at;
    Bytes result = slot(rank_, first + c) + at;
    manyranks::reduce(result, inputs, size(), n, dtype, op);
    if (takes) copy_bytes(out + c * per_chunk * element + at, result, n * element);
    count_sent(root < 0 ? n * element * (size() - 1) : root == rank_ ? 0 : n * element);
  };
  const auto collect = [&](uint64_t c) {
    const Slices slices = slices_of(c);
    for (int k = 1; takes && k < size(); ++k) {
      const int peer = (rank_ + k) % size();  // not all from rank 0 first
      const size_t at = slices.begin(peer) * element;
      copy_bytes(out + c * per_chunk * element + at, slot(peer, first + c) + at, slices.size(peer) * element);
    }
  };

  const bool registered = control(rank_).print[sequence_ % 2].in_place && control(rank_).print[sequence_ % 2].out_place;
  if (!registered) stage(0);
  arrive();
  if (registered && share_places(true, true)) return reduce_in_place(count, dtype, op, root);
  bool staged_by_all = true;
  for (int peer = 0; peer < size(); ++peer) {
    const auto& print = control(peer).print[sequence_ % 2];
    staged_by_all = staged_by_all && !(print.in_place && print.out_place);
  }
  if (!staged_by_all) {  // somebody hoped for zero copy in vain
    if (registered) stage(0);
    step();
    everybody();
  }
  // Steps: staged 0 | staged 1, reduced 0 | staged 2, reduced 1 | ...  Chunk 1 is staged only after the arrival, because a peer may
  // until then still read the slot from the call before.
  for (uint64_t c = 0; c < chunks; ++c) {
    if (c + 1 < chunks) stage(c + 1);
    reduce_mine(c);
    step();
    everybody();
    collect(c);
  }
  chunk_ += chunks;
}

// Only I touch my slice, of all tensors, between the two meetings.
void HostGroup::reduce_in_place(size_t count, Dtype dtype, ReduceOp op, int) {
  const size_t element = size_of(dtype);
  const auto& print = control(rank_).print[sequence_ % 2];
  const Slices slices(count, size(), element);
  std::vector<const std::byte*> in(size());
  std::vector<Bytes> out(size());
  for (int peer = 0; peer < size(); ++peer) {
    in[peer] = peers_->at(print.in_place, members_[peer]);
    out[peer] = peers_->at(print.out_place, members_[peer]);
  }
  constexpr size_t block_bytes = 16 << 10;  // the block is still in the first-level cache when it is copied out
  const size_t begin = slices.begin(rank_), end = begin + slices.size(rank_), block = block_bytes / element;
  const void* inputs[size() + 1];
  for (size_t at = begin; at < end; at += block) {
    const size_t n = std::min(block, end - at);
    for (int peer = 0; peer < size(); ++peer) inputs[peer] = in[peer] + at * element;
    manyranks::reduce(out[rank_] + at * element, inputs, size(), n, dtype, op);
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank_) copy_bytes(out[peer] + at * element, out[rank_] + at * element, n * element);
  }
  // Read from me: all slices but mine. Written by me: my slice, to everybody else.
  count_sent((count - (end - begin)) * element + (end - begin) * element * (size() - 1));
  step();
  everybody();
}

void HostGroup::reduce_scatter(void* out, const void* in_, size_t count, Dtype dtype, ReduceOp op) {
  const auto* in = static_cast<const std::byte*>(in_);
  const size_t element = size_of(dtype), bytes = count * element;
  const void* inputs[size() + 1];
  begin(Call{Operation::reduce_scatter, dtype, op, 0, count}, bytes * size() > small_bytes ? peers_->place_of(in, bytes * size()) : 0, 0);
  count_sent(bytes * (size() - 1));
  if (bytes * size() <= small_bytes) {
    copy_bytes(small_slot(rank_), in, bytes * size());
    arrive();
    for (int peer = 0; peer < size(); ++peer) inputs[peer] = small_slot(peer) + rank_ * bytes;
    manyranks::reduce(out, inputs, size(), count, dtype, op);
    return end();
  }
  const bool registered = in_place(rank_) != 0;
  const size_t per_chunk = slot_bytes_ / size() / 64 * 64 / element;
  const auto stage = [&](size_t at) {
    const size_t n = std::min(per_chunk, count - at);
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank_) copy_bytes(slot(rank_, chunk_) + peer * per_chunk * element, in + peer * bytes + at * element, n * element);
  };
  if (!registered) stage(0);
  arrive();
  if (registered && share_places(true, false)) {
    for (int peer = 0; peer < size(); ++peer) inputs[peer] = peers_->at(in_place(peer), members_[peer]) + rank_ * bytes;
    manyranks::reduce(out, inputs, size(), count, dtype, op);
    step();
    everybody();
    return end();
  }
  bool staged_by_all = true;
  for (int peer = 0; peer < size(); ++peer) staged_by_all = staged_by_all && !in_place(peer);
  if (!staged_by_all) {
    if (registered) stage(0);
    step();
    everybody();
  }
  for (size_t at = 0; at < count; at += per_chunk, ++chunk_) {
    if (at > 0) stage(at), step(), everybody();
    for (int peer = 0; peer < size(); ++peer)
      inputs[peer] = peer == rank_ ? in + peer * bytes + at * element : slot(peer, chunk_) + rank_ * per_chunk * element;
    manyranks::reduce(static_cast<Bytes>(out) + at * element, inputs, size(), std::min(per_chunk, count - at), dtype, op);
  }
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
