#include "comm/wire_group.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/algorithms.hpp"
#include "launch/errors.hpp"

namespace manyranks {
namespace {

bool all_equal(const std::vector<std::vector<int>>& hosts) {
  return std::all_of(hosts.begin(), hosts.end(), [&](const auto& members) { return members.size() == hosts[0].size(); });
}

// The ranks that reduce one slice together: those with my place on each host, or the leaders.
struct Counterparts {
  Counterparts(const std::vector<std::vector<int>>& hosts, const std::vector<int>& world_ranks, int rank) {
    size_t place = 0, mine = 0;
    for (size_t h = 0; h < hosts.size(); ++h)
      for (size_t i = 0; i < hosts[h].size(); ++i)
        if (hosts[h][i] == rank) mine = h, place = all_equal(hosts) ? i : 0;
    for (const auto& members : hosts) ranks.push_back(world_ranks[members[place]]);
    me = static_cast<int>(mine);
  }
  std::vector<int> ranks;
  int me = 0;
};

std::vector<int> local_numbers(const std::vector<std::vector<int>>& hosts, int rank, int ranks) {
  std::vector<int> local(ranks, -1);
  for (const auto& members : hosts)
    if (std::find(members.begin(), members.end(), rank) != members.end())
      for (size_t i = 0; i < members.size(); ++i) local[members[i]] = static_cast<int>(i);
  return local;
}

}  // namespace

WireGroup::WireGroup(std::unique_ptr<HostGroup> host, std::shared_ptr<Wire> wire, int channel, std::vector<int> world_ranks, int rank, std::vector<std::vector<int>> hosts,
                     std::string name, double timeout_s)
    : host_(std::move(host)), wire_(wire), name_(std::move(name)), flat_(wire, 2 * channel, world_ranks, rank, timeout_s),
      counterparts_(wire, 2 * channel, Counterparts(hosts, world_ranks, rank).ranks, Counterparts(hosts, world_ranks, rank).me, timeout_s), even_(all_equal(hosts)),
      alone_on_hosts_(std::all_of(hosts.begin(), hosts.end(), [](const auto& members) { return members.size() == 1; })),
      mailbox_(wire, 2 * channel + 1, world_ranks, rank, timeout_s, host_->matching_mailbox(), local_numbers(hosts, rank, static_cast<int>(world_ranks.size()))) {}

std::string WireGroup::transport() const { return alone_on_hosts_ ? wire_->name() : "shared memory + " + wire_->name(); }

void WireGroup::begin(const Call& call) {
  ++sequence_;
  flat_.doing = counterparts_.doing = fmt::format("{} #{} of '{}'", call.text(), sequence_, name_);
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  const uint64_t mine[3] = {sequence_, call.kind(), call.count};
  uint64_t theirs[3] = {};
  flat_.send_recv(next, mine, sizeof mine, previous, theirs, sizeof theirs);
  flat_.take_bytes_sent();  // the check is not the user's traffic
  if (std::memcmp(mine, theirs, sizeof mine) != 0)
    throw disagree_error(fmt::format("{} #{} of '{}'", name_of(call.operation), sequence_, name_),
                         fmt::format("ranks disagree: rank {} called {}, rank {} called {} as call #{} of '{}'", rank(), call.text(), previous,
                                     Call::from(theirs[1], theirs[2]).text(), theirs[0], name_),
                         "every rank must make the same calls in the same order");
}

void WireGroup::end() {
  count_sent(flat_.take_bytes_sent() + counterparts_.take_bytes_sent() + static_cast<size_t>(host_->bytes_sent()));
  host_->reset_bytes_sent();
}

void WireGroup::meet(const Call& call) {
  begin(call);
  dissemination_barrier(flat_);
  flat_.take_bytes_sent();
  end();
}

void WireGroup::all_reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op) {
  begin(Call{Operation::all_reduce, dtype, op, 0, count});
  const size_t element = size_of(dtype), local = host_->size();
  if (alone_on_hosts_) {
    copy_bytes(out, in, count * element);
    manyranks::all_reduce(flat_, Buffer{out, count, dtype}, op);
  } else if (even_ && count * element > HostGroup::small_bytes) {
    // Two levels: each rank takes its slice of the host's sum to its counterparts. What does not divide goes as a small one.
    const size_t slice = count / local, whole = slice * local;
    std::vector<std::byte> mine(slice * element);
    host_->reduce_scatter(mine.data(), in, slice, dtype, op);
    manyranks::all_reduce(counterparts_, Buffer{mine.data(), slice, dtype}, op);
    auto* rest = static_cast<std::byte*>(out) + whole * element;
    copy_bytes(rest, static_cast<const std::byte*>(in) + whole * element, (count - whole) * element);
    host_->exchange(Operation::all_gather, out, mine.data(), slice, dtype, 0);
    if (count > whole) manyranks::all_reduce(flat_, Buffer{rest, count - whole, dtype}, op);
  } else {
    host_->reduce(out, in, count, dtype, op, 0);
    if (host_->rank() == 0) manyranks::all_reduce(counterparts_, Buffer{out, count, dtype}, op);
    host_->exchange(Operation::broadcast, out, out, count, dtype, 0);
  }
  end();
}

void WireGroup::reduce_scatter(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op) {
  begin(Call{Operation::reduce_scatter, dtype, op, 0, count});
  const size_t bytes = count * size_of(dtype);
  std::vector<std::byte> all(bytes * size());
  copy_bytes(all.data(), in, all.size());
  ring_reduce_scatter(flat_, Buffer{all.data(), count * size(), dtype}, op);
  copy_bytes(out, all.data() + rank() * bytes, bytes);
  end();
}

void WireGroup::reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op, int root) {
  begin(Call{Operation::reduce, dtype, op, root, count});
  std::vector<std::byte> sum(count * size_of(dtype));
  copy_bytes(sum.data(), in, sum.size());
  tree_reduce(flat_, Buffer{sum.data(), count, dtype}, op, root);
  if (rank() == root) copy_bytes(out, sum.data(), sum.size());
  end();
}

void WireGroup::exchange(Operation operation, void* out_, const void* in_, size_t count, Dtype dtype, int root) {
  begin(Call{operation, dtype, ReduceOp::sum, root, count});
  auto* out = static_cast<std::byte*>(out_);
  const auto* in = static_cast<const std::byte*>(in_);
  const size_t bytes = count * size_of(dtype);
  switch (operation) {
    case Operation::all_gather:
      copy_bytes(out + rank() * bytes, in, bytes);
      ring_all_gather(flat_, Buffer{out, count * size(), dtype});
      break;
    case Operation::broadcast: tree_broadcast(flat_, Buffer{out, count, dtype}, root); break;
    case Operation::all_to_all: pairwise_all_to_all(flat_, out, in, bytes); break;
    case Operation::gather:
      if (rank() != root) flat_.send(root, in, bytes);
      else copy_bytes(out + rank() * bytes, in, bytes);
      for (int r = 0; rank() == root && r < size(); ++r)
        if (r != root) flat_.recv(r, out + r * bytes, bytes);
      break;
    default:  // scatter
      if (rank() != root) flat_.recv(root, out, bytes);
      else copy_bytes(out, in + rank() * bytes, bytes);
      for (int r = 0; rank() == root && r < size(); ++r)
        if (r != root) flat_.send(r, in + r * bytes, bytes);
  }
  end();
}

}  // namespace manyranks
