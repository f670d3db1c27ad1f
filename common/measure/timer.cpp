#include "measure/timer.hpp"

#include <ATen/Context.h>
#include "launch/torch.hpp"

#include <stdexcept>

#include "comm/communicator.hpp"  // Communicator
#include "measure/statistics.hpp"

namespace manyranks {

void finish_device_work() {
  if (!torch::cuda::is_available()) return;
  // A CPU run on a GPU node must not create a CUDA context only to find it idle.
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(torch::kCUDA);
  if (hooks.hasPrimaryContext(hooks.getCurrentDevice())) torch::cuda::synchronize();
}

void StepTimer::start() {
  finish_device_work();
  timer_.restart();
}

void StepTimer::stop() {
  finish_device_work();
  add(timer_.seconds());
}

void StepTimer::add(double seconds) {
  if (warmup_ > 0) {
    --warmup_;
  } else {
    mine_.push_back(seconds);
  }
}

Timing StepTimer::over_ranks(Communicator& communicator) const {
  if (mine_.empty()) throw std::invalid_argument("no step was timed: more steps than warm-up are needed");
  auto slowest = torch::tensor(mine_, torch::kFloat64);  // (steps)
  if (communicator.backend() == "nccl") slowest = slowest.to(torch::kCUDA);
  communicator.all_reduce(slowest, ReduceOp::max);
  slowest = slowest.to(torch::kCPU);
  const double* data = slowest.data_ptr<double>();
  std::vector<double> samples(data, data + slowest.numel());
  return {median(samples), quantile(samples, 0.95), samples};
}

Timing time_steps(Communicator& communicator, int64_t warmup, int64_t steps, const std::function<void()>& step) {
  StepTimer timer(0);
  for (int64_t i = 0; i < warmup; ++i) step();
  communicator.barrier();
  for (int64_t i = 0; i < steps; ++i) {
    timer.start();
    step();
    timer.stop();
  }
  return timer.over_ranks(communicator);
}

}  // namespace manyranks
