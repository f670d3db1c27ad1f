// The Communicator for CPU tensors (mpi, gloo, alone): checks tensors, runs calls in order, maps them to a Group.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/communicator.hpp"
#include "comm/fabric.hpp"
#include "comm/group.hpp"
#include "comm/lane.hpp"

namespace manyranks {

class HostCommunicator : public Communicator {
 public:
  HostCommunicator(std::shared_ptr<Fabric> fabric, std::unique_ptr<Group> group, std::vector<int> members, std::string name, std::string why);
  ~HostCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return name_; }
  std::string backend() const override { return fabric_->backend; }
  std::string transport() const override { return size_ == 1 ? "none" : group_->transport(); }
  std::string why() const override { return why_; }

  using Communicator::all_reduce;
  using Communicator::all_reduce_async;
  Work all_reduce_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) override;
  Work all_gather_async(const torch::Tensor& out, const torch::Tensor& in) override;
  Work reduce_scatter_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) override;
  Work broadcast_async(const torch::Tensor& inout, int root) override;
  Work reduce_async(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op) override;
  Work gather_async(const torch::Tensor& out, const torch::Tensor& in, int root) override;
  Work scatter_async(const torch::Tensor& out, const torch::Tensor& in, int root) override;
  Work all_to_all_async(const torch::Tensor& out, const torch::Tensor& in) override;
  Work send_async(const torch::Tensor& in, int to, int tag) override;
  Work recv_async(const torch::Tensor& out, int from, int tag) override;

  void all_reduce(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) override;
  void all_gather(const torch::Tensor& out, const torch::Tensor& in) override;
  void reduce_scatter(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) override;
  void broadcast(const torch::Tensor& inout, int root) override;
  void reduce(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op) override;
  void gather(const torch::Tensor& out, const torch::Tensor& in, int root) override;
  void scatter(const torch::Tensor& out, const torch::Tensor& in, int root) override;
  void all_to_all(const torch::Tensor& out, const torch::Tensor& in) override;
  void send(const torch::Tensor& in, int to, int tag) override;
  void recv(const torch::Tensor& out, int from, int tag) override;
  void barrier() override;

  torch::Tensor allocate(std::vector<int64_t> sizes, torch::Dtype dtype) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  Traffic traffic() const override;
  void reset_traffic() override;
  void finish() override;
  bool claim_failure(int code, const std::string& line) noexcept override;
  void end_peers() noexcept override;

  Lane& lane() { return lane_; }

 private:
  struct Plan;  // a checked call: pointers, counts
  Plan plan_reduce(Operation operation, const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op);
  Plan plan_exchange(Operation operation, const torch::Tensor& out, const torch::Tensor& in, int root);
  void run(const Plan& plan);
  Work submit(const Plan& plan, const torch::Tensor& out, const torch::Tensor& in);
  std::shared_ptr<Message> post(bool sending, const torch::Tensor& tensor, int peer, int tag);
  Work carry(std::shared_ptr<Message> message, const torch::Tensor& tensor);
  std::vector<std::string> all_gather_text(const std::string& mine);
  void check_peer(Operation operation, int peer) const;
  void count(Operation operation) { calls_[static_cast<int>(operation)].fetch_add(1, std::memory_order_relaxed); }
  void serve_mail();

  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Group> group_;
  std::vector<int> members_;  // world ranks
  std::string name_, why_;
  int rank_, size_, children_ = 0;
  std::array<std::atomic<int64_t>, 16> calls_{};
  Lane lane_;

  // Point-to-point under way is moved on by this thread, while nobody waits for it.
  std::mutex mail_mutex_;
  std::condition_variable mail_posted_;
  bool mail_pending_ = false;
  std::atomic<bool> mail_stop_{false};
  std::thread mail_thread_;
};

}  // namespace manyranks
