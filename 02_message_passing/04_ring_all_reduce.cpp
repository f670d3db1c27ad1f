// The ring all-reduce, written by hand: the algorithm that made data-parallel training scale.
//
// You learn   why a ring moves 2 (p-1)/p n bytes per rank, nearly the same for 4 ranks as for 4,000; why it still needs
//             2 (p-1) steps, so that small messages suffer; how chunks hide the adding behind the receiving.
// Run it      build/02_message_passing/04_ring_all_reduce
//             mpirun -np 2 build/02_message_passing/04_ring_all_reduce
//             mpirun -np 4 build/02_message_passing/04_ring_all_reduce
// Picture     3 ranks, each vector cut into 3 parts; a part walks to the right and grows, then the sums walk on:
//               rank 0  [a0]  b0   c0       a0    b0   [c02]       sum_b is complete here
//               rank 1   a1  [b1]  c1  ->  [a01]  b1    c1    ->   sum_c ...              ->  everybody has all sums
//               rank 2   a2   b2  [c2]      a2   [b12]  c2         sum_a ...
//                        reduce-scatter, p-1 steps                 all-gather, p-1 steps
// You see     bytes counted at each send, equal to the formula for every size, also where n is not divisible by p; then
//             the time of this ring beside MPI_Allreduce.
// Read next   05_better_all_reduce.cpp
#include <algorithm>
#include <cstring>

#include "measure/provenance.hpp"  // Row, fill, write_row
#include "measure/statistics.hpp"  // median, quantile
#include "measure/table.hpp"       // Table, format_bytes
#include "measure/timer.hpp"       // WallTimer, Timing
#include "raw_mpi.hpp"             // RawMpi, CHECK_MPI

using namespace manyranks;

namespace {

class Ring {
 public:
  Ring(const RawMpi& mpi, int64_t chunk_bytes)
      : mpi_(mpi), chunk_(std::max<int64_t>(1, chunk_bytes / static_cast<int64_t>(sizeof(float)))), scratch_{std::vector<float>(chunk_), std::vector<float>(chunk_)} {}

  int64_t bytes_sent = 0;

  // In place: data becomes the sum over ranks.  data: (n)
  void all_reduce(float* data, int64_t n) {
    const int p = mpi_.size, rank = mpi_.rank;
    // Step s: my part (rank - s), which already holds s+1 ranks' sum, goes right; part (rank - s - 1) comes from the left
    // and is added to mine. After p-1 steps part (rank + 1) is complete here.
    for (int s = 0; s < p - 1; ++s) {
      start_send(data, n, rank - s);
      receive_and_add(data, n, rank - s - 1);
      finish_sends();
    }
    // The complete parts go round once more. No adding, so they are received in place.
    for (int s = 0; s < p - 1; ++s) {
      start_send(data, n, rank + 1 - s);
      receive(data, n, rank - s);
      finish_sends();
    }
  }

  // What rank `rank` must send: all parts but (rank + 1) in the first round, all but (rank + 2) in the second.
  static int64_t formula_bytes(int64_t n, int rank, int p) {
    if (p == 1) return 0;
    return (2 * n - part(n, rank + 1, p).count - part(n, rank + 2, p).count) * static_cast<int64_t>(sizeof(float));
  }

 private:
  struct Part {
    int64_t begin, count;
  };
  // Parts differ by one element at most; some are empty if n < p.
  static Part part(int64_t n, int index, int p) {
    index = ((index % p) + p) % p;
    const int64_t begin = n * index / p, end = n * (index + 1) / p;
    return {begin, end - begin};
  }

  // Both sides cut a part into the same chunks, so that the k-th message is the k-th chunk: order between a pair is promised.
  void start_send(const float* data, int64_t n, int index) {
    const Part p = part(n, index, mpi_.size);
    for (int64_t at = 0; at < p.count; at += chunk_) {
      const int count = static_cast<int>(std::min(chunk_, p.count - at));
      CHECK_MPI(MPI_Isend(data + p.begin + at, count, MPI_FLOAT, mpi_.right(), 0, mpi_.world, &sends_.emplace_back()));
      bytes_sent += count * static_cast<int64_t>(sizeof(float));
    }
  }
  void finish_sends() {
    CHECK_MPI(MPI_Waitall(static_cast<int>(sends_.size()), sends_.data(), MPI_STATUSES_IGNORE));
    sends_.clear();
  }

  // Two buffers of one chunk: while one is added, the next chunk arrives in the other.
  void receive_and_add(float* data, int64_t n, int index) {
    const Part p = part(n, index, mpi_.size);
    const int64_t chunks = (p.count + chunk_ - 1) / chunk_;
    MPI_Request requests[2];
    const auto length = [&](int64_t k) { return std::min(chunk_, p.count - k * chunk_); };
    const auto start = [&](int64_t k) {
      CHECK_MPI(MPI_Irecv(scratch_[k % 2].data(), static_cast<int>(length(k)), MPI_FLOAT, mpi_.left(), 0, mpi_.world, &requests[k % 2]));
    };
    if (chunks > 0) start(0);
    for (int64_t k = 0; k < chunks; ++k) {
      if (k + 1 < chunks) start(k + 1);
      CHECK_MPI(MPI_Wait(&requests[k % 2], MPI_STATUS_IGNORE));
      float* mine = data + p.begin + k * chunk_;
      const float* theirs = scratch_[k % 2].data();
      for (int64_t i = 0; i < length(k); ++i) mine[i] += theirs[i];
    }
  }
  void receive(float* data, int64_t n, int index) {
    const Part p = part(n, index, mpi_.size);
    for (int64_t at = 0; at < p.count; at += chunk_)
      CHECK_MPI(MPI_Recv(data + p.begin + at, static_cast<int>(std::min(chunk_, p.count - at)), MPI_FLOAT, mpi_.left(), 0, mpi_.world, MPI_STATUS_IGNORE));
  }

  const RawMpi& mpi_;
  int64_t chunk_;  // elements
  std::vector<float> scratch_[2];
  std::vector<MPI_Request> sends_;
};

// Whole numbers: every order of summation gives the same float, so that the ring can be compared bit by bit.
std::vector<float> input(int64_t n, int rank) {
  std::vector<float> data(n);
  for (int64_t i = 0; i < n; ++i) data[i] = static_cast<float>((i * 7 + rank * 31) % 1021 - 300);
  return data;
}

void verify(const RawMpi& mpi, Ring& ring, int64_t n) {
  const std::vector<float> mine = input(n, mpi.rank);
  std::vector<float> ours = mine, theirs(n);
  ring.bytes_sent = 0;
  ring.all_reduce(ours.data(), n);
  CHECK_MPI(MPI_Allreduce(mine.data(), theirs.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM, mpi.world));
  for (int64_t i = 0; i < n; ++i)
    if (std::memcmp(&ours[i], &theirs[i], sizeof(float)) != 0)
      throw verify_error("ring all_reduce", fmt::format("n = {}, rank {}, element {}: the ring has {}, MPI_Allreduce {}", n, mpi.rank, i, ours[i], theirs[i]));
  const int64_t formula = Ring::formula_bytes(n, mpi.rank, mpi.size);
  if (ring.bytes_sent != formula)
    throw verify_error("ring all_reduce", fmt::format("n = {}, rank {}: sent {} bytes, the formula says {}", n, mpi.rank, ring.bytes_sent, formula));
}

// Seconds per all-reduce: each sample is its slowest rank's; the two rivals take turns.
std::pair<Timing, Timing> time_both(const RawMpi& mpi, Ring& ring, int64_t n, int samples) {
  std::vector<float> data(n, 0), out(n);  // zeros stay zeros, however often they are summed
  std::vector<double> ours, theirs;
  for (int s = -2; s < samples; ++s) {
    for (const bool ring_turn : {true, false}) {
      CHECK_MPI(MPI_Barrier(mpi.world));
      const WallTimer timer;
      if (ring_turn) ring.all_reduce(data.data(), n);
      else CHECK_MPI(MPI_Allreduce(data.data(), out.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM, mpi.world));
      double mine = timer.seconds(), slowest = 0;
      CHECK_MPI(MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, mpi.world));
      if (s >= 0) (ring_turn ? ours : theirs).push_back(slowest);
    }
  }
  return {Timing{median(ours), quantile(ours, 0.95), ours}, Timing{median(theirs), quantile(theirs, 0.95), theirs}};
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("02_message_passing/04_ring_all_reduce", "the ring all-reduce, by hand");
    int64_t chunk = 256 << 10;
    options.add("--chunk", chunk, "bytes per message").between(int64_t{4}, int64_t{1} << 30);
    process.start(options);
    const RawMpi mpi(process);
    const int p = mpi.size;

    // 2. Verify: result and bytes, for no element, fewer than ranks, not divisible, and several chunks of odd length.
    Ring ring(mpi, chunk), odd_chunks(mpi, 148);
    const std::vector<int64_t> counts = {0, 1, p - 1, p, p + 1, 1000, 4099, 3 * chunk / 4 + 1};
    for (const int64_t n : counts) verify(mpi, ring, n), verify(mpi, odd_chunks, n);
    if (mpi.rank == 0) fmt::print("  {} sizes, 2 chunk lengths: same bits as MPI_Allreduce, bytes sent as the formula says\n", counts.size());
    if (options.verify_only) return;

    // 3. Predict, then measure: 2 (p-1)/p n bytes per rank.
    Table table({"size", "predicted bytes", "sent (most)", "ring", "MPI_Allreduce", "ring busbw GB/s"});
    const int samples = static_cast<int>(options.steps_or(11, 3));
    for (int64_t bytes = 1 << 10; bytes <= (options.quick ? 64 << 10 : 16 << 20); bytes *= 4) {
      const int64_t n = bytes / static_cast<int64_t>(sizeof(float));
      verify(mpi, ring, n);
      int64_t most = 0;
      CHECK_MPI(MPI_Allreduce(&ring.bytes_sent, &most, 1, MPI_INT64_T, MPI_MAX, mpi.world));
      const auto [ours, theirs] = time_both(mpi, ring, n, samples);
      const double predicted = 2.0 * (p - 1) / p * static_cast<double>(bytes);
      table.add({format_bytes(bytes), fmt::format("{:.0f}", predicted), std::to_string(most), format_seconds(ours.median), format_seconds(theirs.median),
                 fmt::format("{:.2f}", predicted / ours.median * 1e-9)});
      for (const bool is_ring : {true, false}) {
        Row row;
        row.set("variant", is_ring ? "ring" : "MPI_Allreduce").set("workload", "all_reduce").set("kind", "measured").set("backend", "mpi").set("dtype", "float32").set("bytes", bytes);
        fill(row, is_ring ? ours : theirs);
        const double seconds = is_ring ? ours.median : theirs.median;
        row.set("algbw_GBs", static_cast<double>(bytes) / seconds * 1e-9).set("busbw_GBs", predicted / seconds * 1e-9);
        if (is_ring) row.set("sent_bytes", most).set("predicted", predicted).set("measured", static_cast<double>(most)).set("unit", "bytes");
        write_row(process, row);
      }
    }
    if (mpi.rank == 0) fmt::print("{}", table.text(2));
  });
}
