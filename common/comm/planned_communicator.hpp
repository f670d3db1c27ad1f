// The half of a Communicator that is the same for CPU and CUDA tensors: checks every tensor, so that what reaches a backend is a plan
// of plain pointers and counts that cannot be wrong on this rank.
#pragma once

#include <array>
#include <atomic>

#include "comm/call.hpp"
#include "comm/communicator.hpp"

namespace manyranks {

struct Plan {
  Operation operation = Operation::none;
  std::byte* out = nullptr;
  const std::byte* in = nullptr;
  size_t count = 0;  // elements of one rank's part
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;  // or the peer, of send and recv
  int tag = 0;
  Call call() const { return Call{operation, dtype, op, root, count}; }
};

std::optional<Dtype> dtype_of(torch::ScalarType type);

class PlannedCommunicator : public Communicator {
 public:
  PlannedCommunicator(int rank, int size, torch::Device device, std::string name, std::string why)
      : rank_(rank), size_(size), device_(device), name_(std::move(name)), why_(std::move(why)) {}
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  std::string name() const final { return name_; }
  std::string why() const final { return why_; }

  using Communicator::all_reduce;
  using Communicator::all_reduce_async;
  Work all_reduce_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) final;
  Work all_gather_async(const torch::Tensor& out, const torch::Tensor& in) final;
  Work reduce_scatter_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) final;
  Work broadcast_async(const torch::Tensor& inout, int root) final;
  Work reduce_async(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op) final;
  Work gather_async(const torch::Tensor& out, const torch::Tensor& in, int root) final;
  Work scatter_async(const torch::Tensor& out, const torch::Tensor& in, int root) final;
  Work all_to_all_async(const torch::Tensor& out, const torch::Tensor& in) final;
  Work send_async(const torch::Tensor& in, int to, int tag) final;
  Work recv_async(const torch::Tensor& out, int from, int tag) final;

  void all_reduce(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) final;
  void all_gather(const torch::Tensor& out, const torch::Tensor& in) final;
  void reduce_scatter(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) final;
  void broadcast(const torch::Tensor& inout, int root) final;
  void reduce(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op) final;
  void gather(const torch::Tensor& out, const torch::Tensor& in, int root) final;
  void scatter(const torch::Tensor& out, const torch::Tensor& in, int root) final;
  void all_to_all(const torch::Tensor& out, const torch::Tensor& in) final;
  void send(const torch::Tensor& in, int to, int tag) final;
  void recv(const torch::Tensor& out, int from, int tag) final;

 protected:
  virtual void run(const Plan& plan) = 0;  // blocking
  virtual Work start(const Plan& plan, const torch::Tensor& out, const torch::Tensor& in) = 0;  // keeps the tensors alive

  void count(Operation operation) { calls_[static_cast<int>(operation)].fetch_add(1, std::memory_order_relaxed); }
  void add_calls(Traffic& traffic) const;
  void reset_calls();

  const int rank_, size_;
  const torch::Device device_;
  const std::string name_, why_;

 private:
  Work begin(const Plan& plan, const torch::Tensor& out, const torch::Tensor& in);
  Plan plan_reduce(Operation operation, const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op);
  Plan plan_exchange(Operation operation, const torch::Tensor& out, const torch::Tensor& in, int root);
  Plan plan_message(Operation operation, const torch::Tensor& tensor, int peer, int tag);
  void check_peer(Operation operation, int peer) const;
  std::array<std::atomic<int64_t>, 16> calls_{};
};

}  // namespace manyranks
