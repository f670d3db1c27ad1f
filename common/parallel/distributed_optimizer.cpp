#include "parallel/distributed_optimizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "launch/errors.hpp"

namespace manyranks {

DistributedOptimizer::DistributedOptimizer(Communicator& world, FlatParameters& flat, std::unique_ptr<Optimizer> inner,
                                           FusionOptions options, Trace* trace)
    : background_(world.split(0, world.rank())),
      flat_(flat),
      inner_(std::move(inner)),
      options_(options),
      trace_(trace),
      count_(flat.slots().size()),
      passes_(count_),
      ready_(count_),
      done_(count_) {
  if (options.backward_passes_per_step < 1)
    throw usage_error("backward_passes_per_step", fmt::format("{} is less than 1", options.backward_passes_per_step));
  world.broadcast(flat.parameters(), 0);
  const int64_t elements = std::clamp<int64_t>(options.fusion_bytes / 4, 1, flat.count());
  buffer_ = background_->allocate({elements}, options.fp16 ? torch::kHalf : torch::kFloat);
  for (size_t i = 0; i < count_;
       ++i)  // a frozen parameter gets no gradient: it waits for step(), and its zeros are summed
    if (flat.slots()[i].parameter.requires_grad())
      hooks_.push_back(std::make_unique<GradientHook>(flat.slots()[i].parameter, [this, i] { announce(i); }));
  thread_ = std::thread([this] { serve(); });
}

DistributedOptimizer::~DistributedOptimizer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DistributedOptimizer::step(double learning_rate, double gradient_scale) {
  {
    std::unique_lock lock(mutex_);
    ready_.assign(count_, true);  // what backward did not reach counts as zero
    waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return failure_ || std::find(done_.begin(), done_.end(), false) == done_.end(); });
    if (failure_) std::rethrow_exception(failure_);
    passes_.assign(count_, 0);
    ready_.assign(count_, false);
    done_.assign(count_, false);
    waiting_ = false;
  }
  // fp16 was divided by the number of ranks before the sum, so that it does not overflow.
  inner_->step(learning_rate, options_.fp16 ? gradient_scale * background_->size() : gradient_scale);
}

void DistributedOptimizer::announce(size_t index) {
  const std::lock_guard lock(mutex_);
  const int passes = options_.backward_passes_per_step;
  if (++passes_[index] > passes)
    throw usage_error(
        "backward",
        fmt::format("gradient {} of {} since the last step(), and the sum over all ranks was begun after {}",
                    passes_[index], flat_.slots()[index].name, passes),
        fmt::format("step() and zero_grad() after {} backward(); to accumulate, backward_passes_per_step", passes));
  if (passes_[index] < passes) return;
  ready_[index] = true;
  changed_.notify_all();
}

void DistributedOptimizer::serve() {
  try {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || pending(); });
        if (stop_) return;
        // A cycle's worth of gradients comes together while we wait; once backward is over there is nothing to wait for.
        changed_.wait_for(lock, std::chrono::duration<double, std::milli>(options_.cycle_ms), [&] { return waiting_ || stop_; });
      }
      cycle();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

bool DistributedOptimizer::pending() const {
  for (size_t i = 0; i < count_; ++i)
    if (ready_[i] && !done_[i]) return true;
  return false;
}

// Negotiate: ready is what is ready on every rank, the minimum of the marks. Then fuse, in the order of registration.
void DistributedOptimizer::cycle() {
  auto marks = torch::zeros({static_cast<int64_t>(count_)}, torch::kInt32);
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < count_; ++i) marks.data_ptr<int32_t>()[i] = ready_[i] && !done_[i];
  }
  {
    std::optional<Trace::Span> span;
    if (trace_) span.emplace(*trace_, "horovod", "negotiate");
    auto everybody = marks.to(buffer_.device());  // NCCL moves CUDA tensors only
    background_->all_reduce(everybody, ReduceOp::min);
    marks = everybody.cpu();
  }
  std::vector<size_t> agreed;
  for (size_t i = 0; i < count_; ++i)
    if (marks.data_ptr<int32_t>()[i]) agreed.push_back(i);
  for (size_t first = 0; first < agreed.size();) first = fuse(agreed, first);
  const std::lock_guard lock(mutex_);
  for (const size_t i : agreed) done_[i] = true;
  changed_.notify_all();
}

// As many as fit in the buffer, at least a part of one. Returns the first that is left.
size_t DistributedOptimizer::fuse(const std::vector<size_t>& agreed, size_t first) {
  const torch::NoGradGuard no_grad;
  std::optional<Trace::Span> span;
  if (trace_) span.emplace(*trace_, "horovod", fmt::format("all-reduce from {}", flat_.slots()[agreed[first]].name));
  const auto row = [&](size_t i) { return flat_.gradients().narrow(0, flat_.slots()[i].begin, flat_.slots()[i].count); };
  if (flat_.slots()[agreed[first]].count > buffer_.numel()) {  // larger than the buffer: piece by piece
    const auto gradient = row(agreed[first]);
    for (int64_t at = 0; at < gradient.numel(); at += buffer_.numel()) exchange({gradient.narrow(0, at, std::min(buffer_.numel(), gradient.numel() - at))});
    return first + 1;
  }
  std::vector<torch::Tensor> rows;
  int64_t filled = 0;
  for (; first < agreed.size() && filled + flat_.slots()[agreed[first]].count <= buffer_.numel(); ++first) {
    rows.push_back(row(agreed[first]));
    filled += rows.back().numel();
  }
  exchange(rows);
  return first;
}

void DistributedOptimizer::exchange(const std::vector<torch::Tensor>& rows) {
  int64_t filled = 0;
  for (const auto& row : rows) {
    auto place = buffer_.narrow(0, filled, row.numel());
    place.copy_(options_.fp16 ? row / background_->size() : row);
    filled += row.numel();
  }
  background_->all_reduce(buffer_.narrow(0, 0, filled));
  ++fused_calls_;
  filled = 0;
  for (auto row : rows) {
    row.copy_(buffer_.narrow(0, filled, row.numel()));
    filled += row.numel();
  }
}

}  // namespace manyranks
