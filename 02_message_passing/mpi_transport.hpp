// Bare MPI messages under the algorithms of comm/algorithms.hpp. Counts what it sends.
#pragma once

#include <cstdint>

#include "comm/algorithms.hpp"  // Transport
#include "raw_mpi.hpp"          // CHECK_MPI

namespace manyranks {

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(MPI_Comm comm) : comm_(comm) {
    CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
    CHECK_MPI(MPI_Comm_size(comm_, &size_));
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(int to, const void* data, size_t bytes) override {
    CHECK_MPI(MPI_Send(data, static_cast<int>(bytes), MPI_BYTE, to, 0, comm_));
    count(bytes);
  }
  void recv(int from, void* data, size_t bytes) override { CHECK_MPI(MPI_Recv(data, static_cast<int>(bytes), MPI_BYTE, from, 0, comm_, MPI_STATUS_IGNORE)); }
  void send_recv(int to, const void* out, size_t out_bytes, int from, void* in, size_t in_bytes) override {
    CHECK_MPI(MPI_Sendrecv(out, static_cast<int>(out_bytes), MPI_BYTE, to, 0, in, static_cast<int>(in_bytes), MPI_BYTE, from, 0, comm_, MPI_STATUS_IGNORE));
    count(out_bytes);
  }

  int64_t bytes_sent = 0, messages = 0;

 private:
  void count(size_t bytes) { bytes_sent += static_cast<int64_t>(bytes), ++messages; }
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
};

// The two communicators of a two-level algorithm: the ranks of one node, and the ranks with the same place on each node.
// Where all ranks sit on one node, `group` of them stand in for a node (2 if that divides the world), so that the algorithm can be
// watched on a laptop; it cannot be faster there, and is not meant to.
class TwoLevel {
 public:
  TwoLevel(const RawMpi& mpi, int local_size) : group_(local_size < mpi.size && mpi.size % local_size == 0 ? local_size : mpi.size % 2 ? mpi.size : 2) {
    CHECK_MPI(MPI_Comm_split(mpi.world, mpi.rank / group_, mpi.rank, &inner_));
    CHECK_MPI(MPI_Comm_split(mpi.world, mpi.rank % group_, mpi.rank, &outer_));
    inner.emplace(inner_);
    outer.emplace(outer_);
  }
  ~TwoLevel() {
    if (std::uncaught_exceptions() > 0) return;
    MPI_Comm_free(&inner_);
    MPI_Comm_free(&outer_);
  }
  TwoLevel(const TwoLevel&) = delete;
  TwoLevel& operator=(const TwoLevel&) = delete;
  int group() const { return group_; }

  std::optional<MpiTransport> inner, outer;

 private:
  int group_;
  MPI_Comm inner_ = MPI_COMM_NULL, outer_ = MPI_COMM_NULL;
};

}  // namespace manyranks
