// Nine collectives, each as MPI calls it and as NCCL calls it, one above the other.
//
// You learn   what each collective leaves on which rank; how the two APIs differ: MPI works on host memory and returns with
//             the result, NCCL works on GPU memory, only enqueues on a stream, and leaves some collectives to you
//             (a group of sends and receives). How NCCL's ranks find each other: 03_collectives_nccl.cpp.
// Run it      build/02_message_passing/03_collectives
//             mpirun -np 2 build/02_message_passing/03_collectives
//             mpirun -np 4 build/02_message_passing/03_collectives
// You see     on 4 ranks without a GPU (pictures are for 3 ranks, the root is the last):
//               collective      before         after                          MPI    NCCL
//               --------------  -------------  -----------------------------  -----  -------
//               broadcast       a    b    c    c       c       c              right  not run
//               reduce          a    b    c    -       -       a+b+c          right  not run
//               all_reduce      a    b    c    a+b+c   a+b+c   a+b+c          right  not run
//               ...
//             NCCL was not run: no GPU for every rank
// Read next   04_ring_all_reduce.cpp
#include "03_collectives_nccl.hpp"  // NcclSide, CHECK_NCCL
#include "measure/table.hpp"        // Table
#include "raw_mpi.hpp"              // RawMpi, CHECK_MPI

#include <chrono>
#include <optional>
#include <thread>

using namespace manyranks;

namespace {

constexpr float untouched = -1;

// Input element i of rank r. Whole numbers below 1021: sums over up to 16,000 ranks are exact in float, so that results can
// be compared bit by bit, whatever the order of summation.
float value(int r, int64_t i) { return static_cast<float>((r * 31 + i * 7) % 1021); }

struct Collective {
  const char *name, *before, *after;
  std::function<void()> mpi, nccl;
  std::function<std::optional<float>(int64_t i)> expected;  // element i of `out` on this rank; none: untouched
};

void verify(const Collective& collective, const char* library, const RawMpi& mpi, const std::vector<float>& out) {
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    const float expected = collective.expected(i).value_or(untouched);
    if (out[i] != expected)
      throw verify_error(fmt::format("{} {}", library, collective.name), fmt::format("rank {}, element {}: got {}, expected {}", mpi.rank, i, out[i], expected));
  }
}

// No rank may leave before the last has come. One host has one clock, so there it can be checked; rank 0 comes late.
bool barrier_holds(const Process& process, const RawMpi& mpi, const std::function<void()>& barrier) {
  const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  if (mpi.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double came = now();
  barrier();
  const double left = now();
  double last_came = 0, first_left = 0;
  CHECK_MPI(MPI_Allreduce(&came, &last_came, 1, MPI_DOUBLE, MPI_MAX, mpi.world));
  CHECK_MPI(MPI_Allreduce(&left, &first_left, 1, MPI_DOUBLE, MPI_MIN, mpi.world));
  return process.nodes() > 1 || last_came <= first_left;
}

}  // namespace

#if MANYRANKS_HAVE_CUDA
#define WITH_NCCL(...) [&] { __VA_ARGS__ }
#else
#define WITH_NCCL(...) nullptr
#endif

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Launch.
    Options options("02_message_passing/03_collectives", "nine collectives on MPI and NCCL");
    int n = 1000;
    options.add("--count", n, "elements per rank").between(1, 1 << 20);
    process.start(options);
    const RawMpi mpi(process);
    const int rank = mpi.rank, size = mpi.size, root = size - 1;  // not 0: a forgotten root then shows
    const MPI_Comm world = mpi.world;

    // 2. Data: `in` and `out` have room for one part of n elements per rank. (size * n) floats each.
    std::vector<float> in(static_cast<size_t>(size) * n), out;
    for (size_t i = 0; i < in.size(); ++i) in[i] = value(rank, static_cast<int64_t>(i));
    NcclSide nccl(process, mpi, in.size());
    [[maybe_unused]] const auto part = [n](auto* buffer, int r) { return buffer + static_cast<size_t>(r) * n; };  // for NCCL
    const auto sum = [size](int64_t i) {
      float total = 0;
      for (int r = 0; r < size; ++r) total += value(r, i);
      return total;
    };
    using Maybe = std::optional<float>;

    // 3. The collectives. In MPI a count is of one part, except for reductions and broadcast, where all of the buffer is one.
    const std::vector<Collective> collectives = {
        {"broadcast", "a    b    c", "c       c       c",
         [&] { if (rank == root) std::copy_n(in.data(), n, out.data());  // MPI_Bcast works in place
               CHECK_MPI(MPI_Bcast(out.data(), n, MPI_FLOAT, root, world)); },
         WITH_NCCL(CHECK_NCCL(ncclBroadcast(nccl.in, nccl.out, n, ncclFloat, root, nccl.comm, nccl.stream));),
         [&](int64_t i) { return i < n ? Maybe(value(root, i)) : Maybe(); }},

        {"reduce", "a    b    c", "-       -       a+b+c",
         [&] { CHECK_MPI(MPI_Reduce(in.data(), out.data(), n, MPI_FLOAT, MPI_SUM, root, world)); },
         WITH_NCCL(CHECK_NCCL(ncclReduce(nccl.in, nccl.out, n, ncclFloat, ncclSum, root, nccl.comm, nccl.stream));),
         [&](int64_t i) { return rank == root && i < n ? Maybe(sum(i)) : Maybe(); }},

        {"all_reduce", "a    b    c", "a+b+c   a+b+c   a+b+c",
         [&] { CHECK_MPI(MPI_Allreduce(in.data(), out.data(), n, MPI_FLOAT, MPI_SUM, world)); },
         WITH_NCCL(CHECK_NCCL(ncclAllReduce(nccl.in, nccl.out, n, ncclFloat, ncclSum, nccl.comm, nccl.stream));),
         [&](int64_t i) { return i < n ? Maybe(sum(i)) : Maybe(); }},

        {"scatter", "-    -    cde", "c       d       e",
         [&] { CHECK_MPI(MPI_Scatter(in.data(), n, MPI_FLOAT, out.data(), n, MPI_FLOAT, root, world)); },
         // A group is one operation: without it, the first ncclSend would wait for its receiver, and the root sends to itself.
         WITH_NCCL(CHECK_NCCL(ncclGroupStart());
                   if (rank == root) for (int r = 0; r < size; ++r) CHECK_NCCL(ncclSend(part(nccl.in, r), n, ncclFloat, r, nccl.comm, nccl.stream));
                   CHECK_NCCL(ncclRecv(nccl.out, n, ncclFloat, root, nccl.comm, nccl.stream));
                   CHECK_NCCL(ncclGroupEnd());),
         [&](int64_t i) { return i < n ? Maybe(value(root, int64_t{rank} * n + i)) : Maybe(); }},

        {"gather", "a    b    c", "-       -       abc",
         [&] { CHECK_MPI(MPI_Gather(in.data(), n, MPI_FLOAT, out.data(), n, MPI_FLOAT, root, world)); },
         WITH_NCCL(CHECK_NCCL(ncclGroupStart());
                   CHECK_NCCL(ncclSend(nccl.in, n, ncclFloat, root, nccl.comm, nccl.stream));
                   if (rank == root) for (int r = 0; r < size; ++r) CHECK_NCCL(ncclRecv(part(nccl.out, r), n, ncclFloat, r, nccl.comm, nccl.stream));
                   CHECK_NCCL(ncclGroupEnd());),
         [&](int64_t i) { return rank == root ? Maybe(value(static_cast<int>(i / n), i % n)) : Maybe(); }},

        {"all_gather", "a    b    c", "abc     abc     abc",
         [&] { CHECK_MPI(MPI_Allgather(in.data(), n, MPI_FLOAT, out.data(), n, MPI_FLOAT, world)); },
         WITH_NCCL(CHECK_NCCL(ncclAllGather(nccl.in, nccl.out, n, ncclFloat, nccl.comm, nccl.stream));),
         [&](int64_t i) { return Maybe(value(static_cast<int>(i / n), i % n)); }},

        {"reduce_scatter", "abc  def  ghi", "a+d+g   b+e+h   c+f+i",
         [&] { CHECK_MPI(MPI_Reduce_scatter_block(in.data(), out.data(), n, MPI_FLOAT, MPI_SUM, world)); },
         WITH_NCCL(CHECK_NCCL(ncclReduceScatter(nccl.in, nccl.out, n, ncclFloat, ncclSum, nccl.comm, nccl.stream));),
         [&](int64_t i) { return i < n ? Maybe(sum(int64_t{rank} * n + i)) : Maybe(); }},

        {"all_to_all", "abc  def  ghi", "adg     beh     cfi",
         [&] { CHECK_MPI(MPI_Alltoall(in.data(), n, MPI_FLOAT, out.data(), n, MPI_FLOAT, world)); },
         WITH_NCCL(CHECK_NCCL(ncclGroupStart());
                   for (int r = 0; r < size; ++r) {
                     CHECK_NCCL(ncclSend(part(nccl.in, r), n, ncclFloat, r, nccl.comm, nccl.stream));
                     CHECK_NCCL(ncclRecv(part(nccl.out, r), n, ncclFloat, r, nccl.comm, nccl.stream));
                   }
                   CHECK_NCCL(ncclGroupEnd());),
         [&](int64_t i) { return Maybe(value(static_cast<int>(i / n), int64_t{rank} * n + i % n)); }},
    };

    // 4. Run and verify each, on both. `out` starts untouched: what a collective must not write has to stay so.
    Table table({"collective", "before", "after", "MPI", "NCCL"});
    const char* nccl_word = nccl.ready() ? "right" : "not run";
    for (const Collective& collective : collectives) {
      out.assign(in.size(), untouched);
      collective.mpi();
      verify(collective, "MPI", mpi, out);
      if (nccl.ready()) verify(collective, "NCCL", mpi, nccl.run(in, std::vector<float>(in.size(), untouched), collective.nccl));
      table.add({collective.name, collective.before, collective.after, "right", nccl_word});
    }

    // 5. The ninth moves no data. NCCL has none: an all-reduce of one element, and the host waits for the stream.
    if (!barrier_holds(process, mpi, [&] { CHECK_MPI(MPI_Barrier(world)); })) throw verify_error("MPI barrier", "a rank left before the last had come");
#if MANYRANKS_HAVE_CUDA
    const auto nccl_barrier = [&] {
      CHECK_NCCL(ncclAllReduce(nccl.in, nccl.out, 1, ncclFloat, ncclSum, nccl.comm, nccl.stream));
      CHECK_CUDA(cudaStreamSynchronize(nccl.stream));
    };
    if (nccl.ready() && !barrier_holds(process, mpi, nccl_barrier)) throw verify_error("NCCL barrier", "a rank left before the last had come");
#endif
    table.add({"barrier", "", "nobody leaves before all came", "right", nccl_word});

    // 6. Report.
    if (rank == 0) fmt::print("{}", table.text(2));
    if (rank == 0 && !nccl.ready()) fmt::print("NCCL was not run: {}\n", nccl.why_not());
  });
}
