// Everything that a trainer must not be trusted with: the clocks, the memory, the losses, the data.
#pragma once

#include "course.hpp"

#include <random>

#include "launch/process.hpp"     // Process
#include "measure/allocator.hpp"  // CountingAllocator
#include "measure/timer.hpp"      // WallTimer

namespace manyranks::capstone {

constexpr uint64_t hash_start = 1469598103934665603u;
uint64_t hash_of(const torch::Tensor& tensor, uint64_t hash = hash_start);  // FNV-1a of its bytes
double largest(Communicator& world, double mine, torch::Device device);     // over all ranks

class Inspector {
 public:
  Inspector(Process& process, const Task& task, uint64_t cap);
  void begins();  // the cap counts from what is held now

  // Learner's code that counts: timed and under the cap. The peak is its own, without the inspector's.
  template <class Body>
  auto timed(Body body) {
    process_.world().barrier();
    memory_.reset_peak();
    memory_.set_cap(cap_ > 0 ? static_cast<uint64_t>(cap_ + held_before_) : 0);
    const WallTimer timer;
    auto result = body();
    finish_device_work();
    seconds_ += timer.seconds();
    memory_.set_cap(0);
    peak_ = std::max(peak_, memory_.peak_bytes());
    return result;
  }

  // whole(), on a clock of its own. The same before every step, so that it does not tell which steps are checked.
  std::vector<torch::Tensor> whole_of(Trainer& trainer);
  void expect_given_weights(const std::vector<torch::Tensor>& whole);
  void before(const std::vector<torch::Tensor>& whole);
  void after(int64_t step, double said, const Loader& loader);
  void expect_true_losses(const Loader& loader);  // of the steps that were kept
  void expect_given_data(const Loader& loader, int64_t steps);
  void write(const std::string& path, int64_t steps, double loss);

 private:
  struct Kept {
    int64_t step;
    double said;
    std::vector<std::vector<float>> weights;  // plain memory: the allocator that holds the cap does not see it
  };
  std::vector<double> dense_losses(const Kept& kept, const Loader& loader, double enough);
  void draw(int64_t first);

  Process& process_;
  const Task& task_;
  CountingAllocator& memory_ = CountingAllocator::get();
  int64_t cap_, held_before_ = 0, peak_ = 0;
  double seconds_ = 0, whole_seconds_ = 0, loss_error_ = 0;
  std::random_device chance_;
  std::shared_ptr<Model> dense_;  // on rank 0, which checks the losses
  std::vector<std::vector<float>> shown_;
  std::vector<Kept> kept_;
  int64_t block_, drawn_ = 0;
  uint64_t initial_hash_ = hash_start, data_hash_ = hash_start;
};

}  // namespace manyranks::capstone
