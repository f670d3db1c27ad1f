// The classic collective algorithms, each written once over pointers and a transport that can send and receive. No LibTorch and
// no MPI: the backends run them between hosts, chapter 02 reads them, the simulator and the unit tests compile them.
//
// Cost on p ranks of n bytes, with a = time to start a message, b = time per byte, g = time to add a byte:
//   recursive doubling   log2(p) (a + nb + ng)                       small messages: fewest starts
//   ring                 2(p-1) a + 2(p-1)/p nb + (p-1)/p ng         large messages: every link busy all the time
//   Rabenseifner         2 log2(p) a + 2(p-1)/p nb + (p-1)/p ng      both, for powers of two
//   two-level            the ring inside the host, then one among hosts on 1/g of the bytes
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <vector>

#include "comm/dtype.hpp"
#include "comm/reduce.hpp"  // reduce_into

namespace manyranks {

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void send(int to, const void* data, size_t bytes) = 0;
  virtual void recv(int from, void* data, size_t bytes) = 0;
  // Both at once: two ranks that first sent and then received could wait for each other for ever.
  virtual void send_recv(int to, const void* out, size_t out_bytes, int from, void* in, size_t in_bytes) = 0;
};

// What the algorithms work on: elements of one dtype, in place.
struct Buffer {
  void* data;
  size_t count;
  Dtype dtype;
  std::byte* at(size_t element) const { return static_cast<std::byte*>(data) + element * size_of(dtype); }
  size_t bytes(size_t elements) const { return elements * size_of(dtype); }
};

// Part i of p of `count` elements: [begin(i), begin(i+1)). Sizes differ by at most one.
struct Parts {
  size_t count;
  int parts;
  size_t begin(int i) const { return count / parts * i + std::min<size_t>(i, count % parts); }
  size_t size(int i) const { return begin(i + 1) - begin(i); }
};

// After it, part `rank` of my buffer holds the sum over all ranks. p-1 steps; step s passes on part rank-s-1 and adds the part
// that arrives, so that a part collects one rank's numbers at each stop and ends with its owner.
inline void ring_reduce_scatter(Transport& net, const Buffer& buffer, ReduceOp op) {
  const int rank = net.rank(), p = net.size(), next = (rank + 1) % p, previous = (rank + p - 1) % p;
  const Parts parts{buffer.count, p};
  std::vector<std::byte> arrived(buffer.bytes(parts.size(0)));
  for (int step = 0; step < p - 1; ++step) {
    const int out = (rank - step - 1 + p) % p, in = (rank - step - 2 + 2 * p) % p;
    net.send_recv(next, buffer.at(parts.begin(out)), buffer.bytes(parts.size(out)), previous, arrived.data(), buffer.bytes(parts.size(in)));
    reduce_into(buffer.at(parts.begin(in)), arrived.data(), parts.size(in), buffer.dtype, op);
  }
}

// Before it, part `rank` of my buffer is right; after it, all are. p-1 steps, each passing on what came last.
inline void ring_all_gather(Transport& net, const Buffer& buffer) {
  const int rank = net.rank(), p = net.size(), next = (rank + 1) % p, previous = (rank + p - 1) % p;
  const Parts parts{buffer.count, p};
  for (int step = 0; step < p - 1; ++step) {
    const int out = (rank - step + p) % p, in = (rank - step - 1 + p) % p;
    net.send_recv(next, buffer.at(parts.begin(out)), buffer.bytes(parts.size(out)), previous, buffer.at(parts.begin(in)), buffer.bytes(parts.size(in)));
  }
}

inline void ring_all_reduce(Transport& net, const Buffer& buffer, ReduceOp op) {
  ring_reduce_scatter(net, buffer, op);
  ring_all_gather(net, buffer);
}

// Where p is not a power of two, the first 2r ranks (r = p - 2^k) fold in pairs: the even one hands its numbers to the odd one,
// sits out, and gets the result at the end. `role` is the number among the 2^k that play, or -1.
struct Fold {
  explicit Fold(const Transport& net) : players(std::bit_floor(static_cast<unsigned>(net.size()))), extra(net.size() - players) {
    const int rank = net.rank();
    role = rank >= 2 * extra ? rank - extra : rank % 2 ? rank / 2 : -1;
  }
  int rank_of(int player) const { return player < extra ? 2 * player + 1 : player + extra; }
  void in(Transport& net, const Buffer& buffer, ReduceOp op, std::vector<std::byte>& scratch) const {
    if (net.rank() >= 2 * extra) return;
    if (role < 0) return net.send(net.rank() + 1, buffer.data, buffer.bytes(buffer.count));
    net.recv(net.rank() - 1, scratch.data(), buffer.bytes(buffer.count));
    reduce_into(buffer.data, scratch.data(), buffer.count, buffer.dtype, op);
  }
  void out(Transport& net, const Buffer& buffer) const {
    if (net.rank() >= 2 * extra) return;
    if (role < 0) return net.recv(net.rank() + 1, buffer.data, buffer.bytes(buffer.count));
    net.send(net.rank() - 1, buffer.data, buffer.bytes(buffer.count));
  }
  int players, extra, role;
};

// Everybody swaps everything with a partner at distance 1, 2, 4, ...; a + b == b + a, so both get the same bits.
inline void recursive_doubling_all_reduce(Transport& net, const Buffer& buffer, ReduceOp op) {
  const Fold fold(net);
  std::vector<std::byte> arrived(buffer.bytes(buffer.count));
  fold.in(net, buffer, op, arrived);
  for (int distance = 1; fold.role >= 0 && distance < fold.players; distance *= 2) {
    const int partner = fold.rank_of(fold.role ^ distance);
    net.send_recv(partner, buffer.data, arrived.size(), partner, arrived.data(), arrived.size());
    reduce_into(buffer.data, arrived.data(), buffer.count, buffer.dtype, op);
  }
  fold.out(net, buffer);
}

// Recursive halving: swap halves with a partner far away, then quarters with one nearer, ... until each has the sum of one part;
// then the same way back, doubling. As few bytes as the ring, in log2(p) steps.
inline void rabenseifner_all_reduce(Transport& net, const Buffer& buffer, ReduceOp op) {
  const Fold fold(net);
  std::vector<std::byte> arrived(buffer.bytes(buffer.count));
  fold.in(net, buffer, op, arrived);
  const Parts parts{buffer.count, fold.players};
  const auto elements = [&](int from, int to) { return parts.begin(to) - parts.begin(from); };
  // I am responsible for parts [first, first + width).
  int first = 0, width = fold.players;
  while (fold.role >= 0 && width > 1) {
    width /= 2;
    const bool upper = fold.role & width;
    const int partner = fold.rank_of(fold.role ^ width), keep = upper ? first + width : first, give = upper ? first : first + width;
    net.send_recv(partner, buffer.at(parts.begin(give)), buffer.bytes(elements(give, give + width)), partner, arrived.data(),
                  buffer.bytes(elements(keep, keep + width)));
    reduce_into(buffer.at(parts.begin(keep)), arrived.data(), elements(keep, keep + width), buffer.dtype, op);
    first = keep;
  }
  for (; fold.role >= 0 && width < fold.players; width *= 2) {
    const bool upper = fold.role & width;
    const int partner = fold.rank_of(fold.role ^ width), theirs = upper ? first - width : first + width;
    net.send_recv(partner, buffer.at(parts.begin(first)), buffer.bytes(elements(first, first + width)), partner, buffer.at(parts.begin(theirs)),
                  buffer.bytes(elements(theirs, theirs + width)));
    first = std::min(first, theirs);
  }
  fold.out(net, buffer);
}

// Binomial tree: in round k the ranks that have the data pass it on over a distance of 2^k, counted from the root.
inline void tree_broadcast(Transport& net, const Buffer& buffer, int root) {
  const int p = net.size(), me = (net.rank() - root + p) % p;
  for (int distance = 1; distance < p; distance *= 2) {
    if (me < distance && me + distance < p) net.send((me + distance + root) % p, buffer.data, buffer.bytes(buffer.count));
    if (me >= distance && me < 2 * distance) net.recv((me - distance + root) % p, buffer.data, buffer.bytes(buffer.count));
  }
}

// The same tree backwards. Destroys the buffer of all but the root.
inline void tree_reduce(Transport& net, const Buffer& buffer, ReduceOp op, int root) {
  const int p = net.size(), me = (net.rank() - root + p) % p;
  std::vector<std::byte> arrived(buffer.bytes(buffer.count));
  for (int distance = static_cast<int>(std::bit_ceil(static_cast<unsigned>(p))) / 2; distance >= 1; distance /= 2) {
    if (me >= distance && me < 2 * distance) net.send((me - distance + root) % p, buffer.data, buffer.bytes(buffer.count));
    if (me < distance && me + distance < p) {
      net.recv((me + distance + root) % p, arrived.data(), arrived.size());
      reduce_into(buffer.data, arrived.data(), buffer.count, buffer.dtype, op);
    }
  }
}

// In step s send to rank + s and receive from rank - s: nobody is asked for two parts at once.
inline void pairwise_all_to_all(Transport& net, std::byte* out, const std::byte* in, size_t bytes) {
  const int rank = net.rank(), p = net.size();
  if (bytes) std::memcpy(out + rank * bytes, in + rank * bytes, bytes);
  for (int step = 1; step < p; ++step) {
    const int to = (rank + step) % p, from = (rank - step + p) % p;
    net.send_recv(to, in + to * bytes, bytes, from, out + from * bytes, bytes);
  }
}

inline void dissemination_barrier(Transport& net) {
  const int rank = net.rank(), p = net.size();
  for (int distance = 1; distance < p; distance *= 2) {
    char out = 0, in = 0;
    net.send_recv((rank + distance) % p, &out, 1, (rank - distance + p) % p, &in, 1);
  }
}

// `inner` joins the ranks of one host, `outer` the ranks with the same place on each host. Between hosts each rank moves only its
// own part: 1/g of the bytes on a link of g ranks.
inline void two_level_all_reduce(Transport& inner, Transport& outer, const Buffer& buffer, ReduceOp op) {
  ring_reduce_scatter(inner, buffer, op);
  const Parts parts{buffer.count, inner.size()};
  ring_all_reduce(outer, Buffer{buffer.at(parts.begin(inner.rank())), parts.size(inner.rank()), buffer.dtype}, op);
  ring_all_gather(inner, buffer);
}

// The switch-over that costs least: few starts while the message is small, few bytes when it is large.
inline void all_reduce(Transport& net, const Buffer& buffer, ReduceOp op) {
  constexpr size_t small = 32 << 10;
  if (buffer.bytes(buffer.count) <= small) return recursive_doubling_all_reduce(net, buffer, op);
  const bool power_of_two = std::has_single_bit(static_cast<unsigned>(net.size()));
  return power_of_two ? rabenseifner_all_reduce(net, buffer, op) : ring_all_reduce(net, buffer, op);
}

}  // namespace manyranks
