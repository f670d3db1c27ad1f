// The learner's door: Ranks over the real Communicator, every call counted. On a GPU the numbers are copied to the device and back, so
// that the exchange itself goes over NCCL.
#pragma once

#include "comm/communicator.hpp"  // Communicator

#include "bench.hpp"  // Ranks, Counts

namespace manyranks {

class CountedRanks final : public Ranks {
 public:
  CountedRanks(Communicator& world, torch::Device device) : world_(world), device_(device) {}
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  void send(int to, std::span<const float> data) override;
  void recv(int from, std::span<float> data) override;
  void send_recv(int to, std::span<const float> out, int from, std::span<float> in) override;
  void all_reduce(std::span<float> data) override;
  void all_reduce_max(std::span<float> data) override;
  void reduce_scatter(std::span<float> out, std::span<const float> in) override;
  void all_gather(std::span<float> out, std::span<const float> in) override;
  void broadcast(std::span<float> data, int root) override;

  void reset() { counts_ = {}; }
  const Counts& counts() const { return counts_; }

 private:
  torch::Tensor letter(std::span<const float> data) const;
  void take(const torch::Tensor& letter, std::span<float> data);
  void check_peer(const char* call, int peer) const;
  void count_message(int to, size_t elements);
  void collective(std::span<float> out, std::span<const float> in, const std::function<void(torch::Tensor, torch::Tensor)>& call);

  Communicator& world_;
  torch::Device device_;
  Counts counts_;
};

}  // namespace manyranks
