// HostGroup's reductions.
#include "comm/host_group_parts.hpp"
#include "comm/reduce.hpp"

namespace manyranks {

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
  // An array that does not fit the caches with the slots goes in half slots, which then stay there (2 ranks, medians of 8 runs:
  // 64 MiB 15.2 ms in place of 16.1, 16 MiB 3.8 in place of 5.0). Streaming stores past the cache were no faster.
  constexpr size_t large = 4 << 20;
  const size_t element = size_of(dtype), most = slot_bytes_ / (count * element < large ? 1 : 2) / element;
  const uint64_t first = chunk_, chunks = std::max<size_t>(1, (count + most - 1) / most);
  const size_t per_chunk = std::min(most, round_up((count + chunks - 1) / chunks, 64));
  const bool takes = root < 0 || root == rank_;
  // All chunks have the same cuts, also the last: while a peer still reads my result of chunk c, I stage chunk c + 2 around it.
  const Slices cuts(per_chunk, size(), element);
  const auto slices_of = [&](uint64_t c) { return cuts.first(std::min(per_chunk, count - std::min(count, c * per_chunk))); };
  const auto stage = [&](uint64_t c) {
    commit_slots();
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
  if (registered && share_places(true, true)) return reduce_in_place(count, dtype, op);
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
void HostGroup::reduce_in_place(size_t count, Dtype dtype, ReduceOp op) {
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
    commit_slots();
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

}  // namespace manyranks
