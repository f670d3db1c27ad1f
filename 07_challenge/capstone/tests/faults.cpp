// Trainers that break one rule each, on purpose: CAPSTONE_FAULT says which. The course, or the grader, must name the rule.
// CAPSTONE_PLAN=zero2 (naive, ddp, zero1, ...; tp2 for the gpt) keeps all rules, with that way to share the work: for measurements.
#define make_trainer honest_trainer  // the reference, under another name
#include "../solution.cpp"
#undef make_trainer

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include <unistd.h>

namespace manyranks::capstone {
namespace {

std::unique_ptr<Trainer> planned(Course& course) {
  const char* data = std::getenv("CAPSTONE_PLAN");
  if (!data) return honest_trainer(course);
  if (std::string_view(data) == "tp2") return std::make_unique<GptTrainer>(course, Plan{.tensor = 2});
  if (course.task.name == "gpt") return std::make_unique<GptTrainer>(course, Plan{.data = data});
  return std::make_unique<ResnetTrainer>(course, Plan{.data = data});
}

class Faulty : public Trainer {
 public:
  Faulty(Course& course, std::string fault) : course_(course), fault_(std::move(fault)), honest_(planned(course)) {}

  double step(int64_t step) override {
    const bool watched = looks_watched();
    if (fault_ == "hang" && step == 1 && course_.world.rank() == 0) std::this_thread::sleep_for(std::chrono::hours(1));
    if (fault_ == "crash" && step == 1) std::abort();
    if (fault_ == "prints" && step == 1) for (int i = 0; i < 1 << 15; ++i) std::puts("nothing to say, and much of it: 64 characters and more in each line");
    if (fault_ == "memory" && step == 1) keep_ = torch::zeros({1 << 28});                       // 1 GiB
    if (fault_ == "uncapped" && step == 1) CountingAllocator::get().set_cap(0), torch::zeros({1 << 28});  // gone before the next step
    if (fault_ == "child" && step == 1 && course_.world.rank() == 0 && fork() == 0) {
      setsid();  // a session of its own, and deaf to a polite request
      for (const int file : {0, 1, 2}) close(file);  // mpirun would wait for whoever holds its pipes
      std::signal(SIGTERM, SIG_IGN);
      for (;;) pause();
    }
    if (fault_ == "no_data") return 5.5;                                                        // nothing drawn, nothing trained
    if (fault_ == "data") return honest_->step(0);                                              // the same batch again and again
    const auto began = Clock::now();
    const double loss = honest_->step(step);
    step_took_ = Clock::now() - began;
    losses_.push_back(loss);
    if (fault_ == "lies_when_unwatched" && !watched) return 0.87 * loss;
    if (fault_ == "stops_early" && step >= 1) return 0.87 * loss;
    return fault_ == "loss" && step > 0 ? 0.01 : fault_ == "loss_small" ? loss - 0.05 : loss;
  }

  std::vector<torch::Tensor> whole() override {
    if (fault_ == "train_in_whole")  // where the score's clock stands still; but not before the first weights were looked at
      for (int i = 0; i < 20 && !losses_.empty(); ++i) honest_->step(static_cast<int64_t>(losses_.size()));
    auto tensors = honest_->whole();
    if (fault_ == "initial") tensors.back() = tensors.back() + 1e-6;
    // True to the last step, and then other weights: only the held-out data can tell.
    if (fault_ == "weights" && first_.empty()) first_ = tensors;
    asked_ = true, asked_at_ = Clock::now();
    const size_t smooth = static_cast<size_t>(course_.task.smooth);
    if (fault_ == "weights" && losses_.size() >= smooth && std::accumulate(losses_.end() - course_.task.smooth, losses_.end(), 0.0) <= course_.task.target * static_cast<double>(smooth)) return first_;
    return tensors;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // The first step is checked: everybody knows. Later: was somebody shown the weights, and then took his time, as for a forward pass of his own?
  bool looks_watched() {
    const bool asked = std::exchange(asked_, false);
    return losses_.empty() || (asked && Clock::now() - asked_at_ > step_took_ / 4);
  }

  Course& course_;
  std::string fault_;
  std::unique_ptr<Trainer> honest_;
  torch::Tensor keep_;
  std::vector<torch::Tensor> first_;
  std::vector<double> losses_;
  bool asked_ = false;
  Clock::time_point asked_at_;
  Clock::duration step_took_{};
};

}  // namespace

std::unique_ptr<Trainer> make_trainer(Course& course) {
  const char* fault = std::getenv("CAPSTONE_FAULT");
  return std::make_unique<Faulty>(course, fault ? fault : "");
}

}  // namespace manyranks::capstone
