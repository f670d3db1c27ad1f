// The Communicator for CUDA tensors: NCCL on a stream of its own. The host never blocks in a call: events order this stream and the
// compute stream, a watchdog looks at what is under way.
//
// What it promises: a rank that waits longer than the time limit, or meets an NCCL error, aborts NCCL and throws (exit 75), naming the
// call and what its peers on this host are doing. NCCL compares nothing itself: a count that differs shows as a time-out.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/fabric.hpp"
#include "comm/nccl_api.hpp"
#include "comm/planned_communicator.hpp"
#include "launch/errors.hpp"

namespace manyranks {

class NcclCommunicator : public PlannedCommunicator {
 public:
  using EndJob = std::function<void(const Error&)>;  // from the watchdog, while the main thread computes
  // Takes `comm`, which may still be in progress. `members`: world ranks.
  NcclCommunicator(std::shared_ptr<NcclApi> api, NcclApi::Comm comm, std::shared_ptr<Fabric> fabric, std::vector<int> members, int rank, torch::Device device,
                   std::string name, std::string why, EndJob end_job);
  ~NcclCommunicator() override;

  std::string backend() const override { return "nccl"; }
  std::string transport() const override { return "NCCL " + std::to_string(api_->library_version()); }
  void barrier() override;
  torch::Tensor allocate(std::vector<int64_t> sizes, torch::Dtype dtype) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  Traffic traffic() const override;
  void reset_traffic() override;
  void finish() override;
  bool claim_failure(int code, const std::string& line) noexcept override { (void)line; return fabric_->peers->claim_failure(code); }
  void end_peers() noexcept override { fabric_->peers->end_others(1.0); }
  HostPeers& peers() { return *fabric_->peers; }

 private:
  struct Flight;  // one call on the stream
  void run(const Plan& plan) override;
  Work start(const Plan& plan, const torch::Tensor& out, const torch::Tensor& in) override;
  void enqueue(const Plan& plan);           // the NCCL calls of one plan
  int64_t bytes_of(const Plan& plan) const; // what another rank receives from me, by the ring's formula
  void wait_ready(const char* what);        // polls until NCCL has done what was asked without blocking
  void wait_host(Flight& flight);           // blocks the host, with the time limit
  std::shared_ptr<Flight> launch(const Plan& plan);
  void watch();
  void fail(const std::string& operation, const std::string& cause);

  std::shared_ptr<NcclApi> api_;
  NcclApi::Comm comm_;
  std::shared_ptr<Fabric> fabric_;
  std::vector<int> members_;
  EndJob end_job_;
  NcclApi::Stream stream_;
  uint64_t sequence_ = 0;
  int children_ = 0;
  std::atomic<int64_t> bytes_sent_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Flight>> flights_;
  std::exception_ptr broken_;
  bool aborted_ = false, stop_ = false;
  std::thread watchdog_;
};

// NCCL_VERSION_CODE against the library that is loaded: a mismatch crashes later, in a place that tells nothing.
void check_nccl_version(NcclApi& api);

}  // namespace manyranks
