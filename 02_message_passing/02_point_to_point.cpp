// Two ranks, one message: send and receive, and the mistakes that everybody makes once.
//
// You learn   blocking and immediate calls; why two sends that face each other hang, and why the hang hides while messages
//             are small; what order MPI promises; tags; why MPI_ANY_SOURCE mixes up phases; receiving unknown lengths.
// Run it      build/02_message_passing/02_point_to_point
//             mpirun -np 2 build/02_message_passing/02_point_to_point
//             mpirun -np 4 build/02_message_passing/02_point_to_point
// You see     on 4 ranks (the eager limit depends on your MPI):
//               blocking    a token went round 4 rank(s) and every rank added 1: 4
//               deadlock    all send to the right, nobody receives: 0 of 4 MPI_Issend done after 50 ms; a blocking MPI_Ssend would hang here
//                           now everybody posts a receive: 4 of 4 done
//               eager       plain MPI_Isend, no receive yet: 8 B done, 4.0 MiB not done: the bug that tests do not find
//               immediate   receive first, then send, then wait for both: 4.0 MiB round the ring
//               order       100 messages to one receiver, one tag: they arrive as they were sent
//               tags        sent 1, 2; received 2, 1: a receive takes the first message that matches, not the first
//               any source  rank 0 asked for 2 messages of phase 1 and got phases 1 and 2 of rank 1; with a tag per phase: right
//               probe       lengths learnt from the message itself: 1 2 3 4
// Read next   03_collectives.cpp
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "measure/table.hpp"  // format_bytes
#include "raw_mpi.hpp"        // RawMpi, CHECK_MPI

using namespace manyranks;

namespace {

constexpr int64_t large = 4 << 20;  // bytes; above every MPI's eager limit

void say(const RawMpi& mpi, const char* idea, const std::string& text) {
  if (mpi.rank == 0) fmt::print("  {:<11} {}\n", idea, text);
}

void verify(bool good, const char* idea, const std::string& what) {
  if (!good) throw verify_error(idea, what);
}

int sum_over_ranks(const RawMpi& mpi, int mine) {
  int sum = 0;
  CHECK_MPI(MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, mpi.world));
  return sum;
}

// MPI_Wait has no time limit. This has: it asks until the request is done or the time is over.
bool done_within(MPI_Request& request, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (int done = 0;;) {
    CHECK_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done || std::chrono::steady_clock::now() > end) return done;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

// MPI_Send returns when the buffer may be used again: not when the message has arrived. MPI_Recv returns with the data.
void blocking(const RawMpi& mpi) {
  int token = 1;
  // Rank 0 sends first, all others receive first: somebody must begin, and somebody must listen.
  if (mpi.size > 1 && mpi.rank == 0) {
    CHECK_MPI(MPI_Send(&token, 1, MPI_INT, mpi.right(), 0, mpi.world));
    CHECK_MPI(MPI_Recv(&token, 1, MPI_INT, mpi.left(), 0, mpi.world, MPI_STATUS_IGNORE));
  } else if (mpi.size > 1) {
    CHECK_MPI(MPI_Recv(&token, 1, MPI_INT, mpi.left(), 0, mpi.world, MPI_STATUS_IGNORE));
    ++token;
    CHECK_MPI(MPI_Send(&token, 1, MPI_INT, mpi.right(), 0, mpi.world));
  }
  if (mpi.rank == 0) verify(token == mpi.size, "blocking", fmt::format("the token came back as {}, not {}", token, mpi.size));
  say(mpi, "blocking", fmt::format("a token went round {} rank(s) and every rank added 1: {}", mpi.size, token));
}

// Everybody sends to the right before anybody receives. MPI_Ssend may return only once its receive has started, so each
// would wait for the next one round the ring, for ever. The immediate form shows it and lives to tell.
void deadlock(const RawMpi& mpi, std::chrono::milliseconds patience) {
  int mine = mpi.rank, got = -1;
  MPI_Request send;
  CHECK_MPI(MPI_Issend(&mine, 1, MPI_INT, mpi.right(), 0, mpi.world, &send));
  const int early = sum_over_ranks(mpi, done_within(send, patience));
  verify(early == 0, "deadlock", fmt::format("{} synchronous sends ended before any receive was posted", early));
  say(mpi, "deadlock", fmt::format("all send to the right, nobody receives: {} of {} MPI_Issend done after {} ms; a blocking MPI_Ssend would hang here",
                                   early, mpi.size, patience.count()));
  CHECK_MPI(MPI_Recv(&got, 1, MPI_INT, mpi.left(), 0, mpi.world, MPI_STATUS_IGNORE));
  const int late = sum_over_ranks(mpi, done_within(send, std::chrono::seconds(10)));
  verify(late == mpi.size && got == mpi.left(), "deadlock", fmt::format("{} of {} sends ended after the receives", late, mpi.size));
  say(mpi, "", fmt::format("now everybody posts a receive: {} of {} done", late, mpi.size));
}

// Plain MPI_Send is free to copy a small message away (eager) and to wait for the receive with a large one (rendezvous).
// So the program above works in the test, and hangs on the day the model grows. The limit is the library's business.
void eager(const RawMpi& mpi, std::chrono::milliseconds patience) {
  std::vector<std::string> seen;
  for (const int64_t bytes : {int64_t{8}, large}) {
    std::vector<char> out(bytes, static_cast<char>(mpi.rank)), in(bytes);
    MPI_Request send;
    CHECK_MPI(MPI_Isend(out.data(), static_cast<int>(bytes), MPI_CHAR, mpi.right(), 0, mpi.world, &send));
    const int early = sum_over_ranks(mpi, done_within(send, patience));  // no promise either way: reported, not verified
    CHECK_MPI(MPI_Recv(in.data(), static_cast<int>(bytes), MPI_CHAR, mpi.left(), 0, mpi.world, MPI_STATUS_IGNORE));
    CHECK_MPI(MPI_Wait(&send, MPI_STATUS_IGNORE));
    verify(in == std::vector<char>(bytes, static_cast<char>(mpi.left())), "eager", format_bytes(bytes) + " arrived damaged");
    seen.push_back(fmt::format("{} {}", format_bytes(bytes), early == mpi.size ? "done" : early == 0 ? "not done" : "done on some ranks"));
  }
  say(mpi, "eager", fmt::format("plain MPI_Isend, no receive yet: {}: the bug that tests do not find", fmt::join(seen, ", ")));
}

// The cure that keeps both directions busy: post the receive, then the send, then wait for both. Between the post and the
// wait neither buffer is yours. (MPI_Sendrecv is the same in one blocking call.)
void immediate(const RawMpi& mpi) {
  std::vector<int> out(large / sizeof(int)), in(out.size(), -1);
  std::iota(out.begin(), out.end(), mpi.rank);  // starts with my rank, so that a wrong sender shows
  const int count = static_cast<int>(out.size());
  MPI_Request requests[2];
  CHECK_MPI(MPI_Irecv(in.data(), count, MPI_INT, mpi.left(), 0, mpi.world, &requests[0]));
  CHECK_MPI(MPI_Isend(out.data(), count, MPI_INT, mpi.right(), 0, mpi.world, &requests[1]));
  CHECK_MPI(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
  std::vector<int> expected(out.size());
  std::iota(expected.begin(), expected.end(), mpi.left());
  verify(in == expected, "immediate", "the left neighbour's numbers arrived damaged");
  say(mpi, "immediate", fmt::format("receive first, then send, then wait for both: {} round the ring", format_bytes(large)));
}

// Between two ranks, on one communicator, messages that match the same receive never overtake each other.
void order(const RawMpi& mpi) {
  constexpr int messages = 100;
  std::vector<int> out(messages);
  std::iota(out.begin(), out.end(), 0);
  std::vector<MPI_Request> sends(messages);
  for (int i = 0; i < messages; ++i) CHECK_MPI(MPI_Isend(&out[i], 1, MPI_INT, mpi.right(), 7, mpi.world, &sends[i]));
  for (int i = 0; i < messages; ++i) {
    int got = -1;
    CHECK_MPI(MPI_Recv(&got, 1, MPI_INT, mpi.left(), 7, mpi.world, MPI_STATUS_IGNORE));
    verify(got == i, "order", fmt::format("message {} arrived as number {}", got, i));
  }
  CHECK_MPI(MPI_Waitall(messages, sends.data(), MPI_STATUSES_IGNORE));
  say(mpi, "order", fmt::format("{} messages to one receiver, one tag: they arrive as they were sent", messages));
}

void tags(const RawMpi& mpi) {
  int out[2] = {mpi.rank + 10, mpi.rank + 20}, first = -1, second = -1;
  MPI_Request sends[2];
  CHECK_MPI(MPI_Isend(&out[0], 1, MPI_INT, mpi.right(), 1, mpi.world, &sends[0]));
  CHECK_MPI(MPI_Isend(&out[1], 1, MPI_INT, mpi.right(), 2, mpi.world, &sends[1]));
  CHECK_MPI(MPI_Recv(&second, 1, MPI_INT, mpi.left(), 2, mpi.world, MPI_STATUS_IGNORE));
  CHECK_MPI(MPI_Recv(&first, 1, MPI_INT, mpi.left(), 1, mpi.world, MPI_STATUS_IGNORE));
  CHECK_MPI(MPI_Waitall(2, sends, MPI_STATUSES_IGNORE));
  verify(first == mpi.left() + 10 && second == mpi.left() + 20, "tags", fmt::format("tag 1 brought {}, tag 2 brought {}", first, second));
  say(mpi, "tags", "sent 1, 2; received 2, 1: a receive takes the first message that matches, not the first");
}

// Workers report phase 1, then phase 2. Rank 0 counts size-1 reports per phase and does not care from whom: a fast worker's
// phase 2 is then counted as a slow worker's phase 1. Here rank 1 is fast, and the others wait for a word from rank 0.
void any_source(const RawMpi& mpi) {
  if (mpi.size < 3) return say(mpi, "any source", "needs 3 ranks: one fast worker, one slow, one that counts");
  constexpr int report = 5, go = 6;
  for (const bool tag_per_phase : {false, true}) {
    const auto tag = [&](int phase) { return tag_per_phase ? report + 10 * phase : report; };
    const auto send_reports = [&] {
      for (int phase : {1, 2}) CHECK_MPI(MPI_Send(&phase, 1, MPI_INT, 0, tag(phase), mpi.world));
    };
    const auto receive = [&](int phase) {
      int got = 0;
      CHECK_MPI(MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, tag(phase), mpi.world, MPI_STATUS_IGNORE));
      return got;
    };
    if (mpi.rank == 1) send_reports();
    if (mpi.rank > 1) {
      CHECK_MPI(MPI_Recv(nullptr, 0, MPI_INT, 0, go, mpi.world, MPI_STATUS_IGNORE));
      send_reports();
    }
    if (mpi.rank == 0) {
      std::vector<int> phase_1 = {receive(1)};                   // rank 1's: nobody else has sent
      if (!tag_per_phase) phase_1.push_back(receive(1));          // meant for rank 2's, takes rank 1's phase 2
      for (int r = 2; r < mpi.size; ++r) CHECK_MPI(MPI_Send(nullptr, 0, MPI_INT, r, go, mpi.world));
      while (static_cast<int>(phase_1.size()) < mpi.size - 1) phase_1.push_back(receive(1));
      int rest = 0;
      for (int r = 1; r < mpi.size; ++r) rest += receive(2);
      const int strays = static_cast<int>(std::count(phase_1.begin(), phase_1.end(), 2));
      verify(tag_per_phase ? strays == 0 && rest == 2 * (mpi.size - 1) : strays >= 1, "any source",
             fmt::format("{} of {} reports of phase 1 were of phase 2", strays, phase_1.size()));
    }
    CHECK_MPI(MPI_Barrier(mpi.world));  // the next round uses the same tags
  }
  say(mpi, "any source", "rank 0 asked for 2 messages of phase 1 and got phases 1 and 2 of rank 1; with a tag per phase: right");
}

// The receiver need not know the length. MPI_Mprobe takes the message off the queue, so that no other thread can snatch it
// between the probe and the receive, as it can with MPI_Probe.
void probe(const RawMpi& mpi) {
  const std::vector<int> out(mpi.rank + 1, mpi.rank);
  MPI_Request send;
  CHECK_MPI(MPI_Isend(out.data(), static_cast<int>(out.size()), MPI_INT, mpi.right(), 8, mpi.world, &send));
  MPI_Message message;
  MPI_Status status;
  int count = 0;
  CHECK_MPI(MPI_Mprobe(mpi.left(), 8, mpi.world, &message, &status));
  CHECK_MPI(MPI_Get_count(&status, MPI_INT, &count));
  std::vector<int> in(count);
  CHECK_MPI(MPI_Mrecv(in.data(), count, MPI_INT, &message, MPI_STATUS_IGNORE));
  CHECK_MPI(MPI_Wait(&send, MPI_STATUS_IGNORE));
  verify(in == std::vector<int>(mpi.left() + 1, mpi.left()), "probe", fmt::format("got {} numbers from rank {}", count, mpi.left()));
  std::vector<int> lengths(mpi.size);
  CHECK_MPI(MPI_Gather(&count, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, mpi.world));
  std::sort(lengths.begin(), lengths.end());
  say(mpi, "probe", fmt::format("lengths learnt from the message itself: {}", fmt::join(lengths, " ")));
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("02_message_passing/02_point_to_point", "send and receive, and the mistakes that everybody makes once");
    process.start(options);
    const RawMpi mpi(process);
    const std::chrono::milliseconds patience(options.quick ? 50 : 500);

    blocking(mpi);
    deadlock(mpi, patience);
    eager(mpi, patience);
    immediate(mpi);
    order(mpi);
    tags(mpi);
    any_source(mpi);
    probe(mpi);
  });
}
