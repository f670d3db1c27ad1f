// The one door between ranks. Operations take tensors; the plain form blocks, the _async form returns a Work to wait() on.
//
//   Communicator& world = process.world();
//   world.all_reduce(gradient);                        // blocks, no thread hand-over
//   Work work = world.all_reduce_async(bucket);        // goes on while you compute
//   work.wait();
#pragma once

#include "launch/torch.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/dtype.hpp"  // ReduceOp

namespace manyranks {

class Process;

// What one asynchronous call became. Copyable; wait() may be called more than once and from one thread at a time. The call
// keeps its tensors alive by itself.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual bool done() const = 0;
  };
  Work() = default;  // already done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void wait() { if (state_) state_->wait(); }                   // throws what the operation threw
  bool done() const { return !state_ || state_->done(); }       // never blocks

 private:
  std::shared_ptr<State> state_;
};

// Counted where bytes are copied or sent: what another rank receives, or reads, from this one.
struct Traffic {
  int64_t bytes_sent = 0;
  int64_t calls = 0;
  std::map<std::string, int64_t> calls_by_operation;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;       // "world", "world/1" after split, for error lines
  virtual std::string backend() const = 0;    // mpi | gloo | nccl | alone
  virtual std::string transport() const = 0;  // "shared memory", "shared memory + MPI (tcp)", ...
  virtual std::string why() const = 0;        // why this backend was picked

  // Tensors must be contiguous and on this communicator's device. `out` may be `in` (or, for all_gather and reduce_scatter, my
  // part of the larger one); any other overlap is refused.
  // In place, or from `in` to `out`; the same bits on every rank. On one host summed in rank order.
  virtual Work all_reduce_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op = ReduceOp::sum) = 0;
  // out = [in of rank 0, in of rank 1, ...]
  virtual Work all_gather_async(const torch::Tensor& out, const torch::Tensor& in) = 0;
  // out = my part of the sum of all `in`
  virtual Work reduce_scatter_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op = ReduceOp::sum) = 0;
  virtual Work broadcast_async(const torch::Tensor& inout, int root) = 0;
  virtual Work reduce_async(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op = ReduceOp::sum) = 0;  // out only at root
  virtual Work gather_async(const torch::Tensor& out, const torch::Tensor& in, int root) = 0;                               // out only at root
  virtual Work scatter_async(const torch::Tensor& out, const torch::Tensor& in, int root) = 0;                              // in only at root
  virtual Work all_to_all_async(const torch::Tensor& out, const torch::Tensor& in) = 0;  // part i of `in` goes to rank i
  virtual Work send_async(const torch::Tensor& in, int to, int tag = 0) = 0;
  virtual Work recv_async(const torch::Tensor& out, int from, int tag = 0) = 0;

  // The same, blocking, on the caller's thread.
  virtual void all_reduce(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op = ReduceOp::sum) = 0;
  virtual void all_gather(const torch::Tensor& out, const torch::Tensor& in) = 0;
  virtual void reduce_scatter(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op = ReduceOp::sum) = 0;
  virtual void broadcast(const torch::Tensor& inout, int root) = 0;
  virtual void reduce(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op = ReduceOp::sum) = 0;
  virtual void gather(const torch::Tensor& out, const torch::Tensor& in, int root) = 0;
  virtual void scatter(const torch::Tensor& out, const torch::Tensor& in, int root) = 0;
  virtual void all_to_all(const torch::Tensor& out, const torch::Tensor& in) = 0;
  virtual void send(const torch::Tensor& in, int to, int tag = 0) = 0;
  virtual void recv(const torch::Tensor& out, int from, int tag = 0) = 0;
  virtual void barrier() = 0;

  void all_reduce(const torch::Tensor& inout, ReduceOp op = ReduceOp::sum) { all_reduce(inout, inout, op); }
  Work all_reduce_async(const torch::Tensor& inout, ReduceOp op = ReduceOp::sum) { return all_reduce_async(inout, inout, op); }

  // A tensor in memory that peers can read: collectives on it copy nothing. Collective: every rank asks for the same.
  virtual torch::Tensor allocate(std::vector<int64_t> sizes, torch::Dtype dtype) = 0;

  // Ranks with the same color form a new communicator, ordered by key, then by rank. Collective. color < 0: none.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  virtual Traffic traffic() const = 0;
  virtual void reset_traffic() = 0;

  // The orderly end: everybody is done, or this throws within the time limit.
  virtual void finish() = 0;

  // For Process::end_job. True for the first rank of the host that calls it: that one speaks and ends the job.
  virtual bool claim_failure(int code, const std::string& line) noexcept = 0;
  // Ends the other ranks on this host that do not end by themselves.
  virtual void end_peers() noexcept = 0;

 protected:
  Communicator() = default;
};

// The world's communicator, by --backend. Collective.
std::unique_ptr<Communicator> connect(Process& process);

}  // namespace manyranks
