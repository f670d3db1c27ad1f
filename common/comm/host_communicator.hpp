// The Communicator for CPU tensors (mpi, gloo, alone): checks tensors, runs calls in order, maps them to a Group.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/fabric.hpp"
#include "comm/group.hpp"
#include "comm/lane.hpp"
#include "comm/planned_communicator.hpp"

namespace manyranks {

class HostCommunicator : public PlannedCommunicator {
 public:
  HostCommunicator(std::shared_ptr<Fabric> fabric, std::unique_ptr<Group> group, std::vector<int> members, std::string name, std::string why);
  ~HostCommunicator() override;

  std::string backend() const override { return fabric_->backend; }
  std::string transport() const override { return size_ == 1 ? "none" : group_->transport(); }

  void barrier() override;

  torch::Tensor allocate(std::vector<int64_t> sizes, torch::Dtype dtype) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  Traffic traffic() const override;
  void reset_traffic() override;
  void finish() override;
  bool claim_failure(int code, const std::string& line) noexcept override;
  void end_peers() noexcept override;
  HostPeers& peers() { return *fabric_->peers; }

 private:
  void run(const Plan& plan) override;
  Work start(const Plan& plan, const torch::Tensor& out, const torch::Tensor& in) override;
  void run_collective(const Plan& plan);
  std::shared_ptr<Message> post(const Plan& plan, std::shared_ptr<void> keep_alive = nullptr);
  Work carry(std::shared_ptr<Message> message);
  std::vector<std::string> all_gather_text(const std::string& mine);
  void serve_mail();

  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Group> group_;
  std::vector<int> members_;  // world ranks
  int children_ = 0;
  Lane lane_;

  // Point-to-point under way is moved on by this thread, while nobody waits for it.
  std::mutex mail_mutex_;
  std::condition_variable mail_posted_;
  bool mail_pending_ = false;
  std::atomic<bool> mail_stop_{false};
  std::thread mail_thread_;
};

}  // namespace manyranks
