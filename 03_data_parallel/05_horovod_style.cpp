// Horovod's way: an optimiser that exchanges gradients behind the program's back, whatever the order in which they come.
//
// You learn   negotiation (every few milliseconds the ranks agree which gradients are ready everywhere) and tensor fusion (all
//             of those in one all-reduce): no fixed buckets, so ranks may make gradients in different orders; what fp16 on the
//             wire saves and costs; how to read a timeline.
// Run it      mpirun -np 2 build/03_data_parallel/05_horovod_style --cycle-ms 2 --trace timeline.json
//             mpirun -np 2 build/03_data_parallel/05_horovod_style --fp16 --model resnet18
// You see     the same bits as the serial run (with --fp16: nearly), in as many all-reduces as there were cycles:
//               8 gradients in 2.0 fused all-reduces per step
// Read next   06_zero1.cpp
#include "workload.hpp"  // Workload, train_serially, verify_model

#include <condition_variable>
#include <mutex>
#include <thread>

#include "measure/trace.hpp"            // Trace
#include "measure/verify.hpp"           // expect_close
#include "parallel/gradient_hook.hpp"   // GradientHook
#include "parallel/replicate.hpp"       // replicate, check_finite
#include "train/flat_parameters.hpp"    // FlatParameters

using namespace manyranks;

namespace {

struct FusionOptions {
  double cycle_ms = 5;          // Horovod's default
  int64_t fusion_mb = 64;       // likewise
  bool fp16 = false;
};

// Wraps any optimiser. The background thread has a communicator of its own: its calls must not mix with the program's.
class DistributedOptimizer {
 public:
  DistributedOptimizer(Communicator& world, FlatParameters& flat, std::unique_ptr<Optimizer> inner, FusionOptions options, Trace& trace)
      : background_(world.split(0, world.rank())), flat_(flat), inner_(std::move(inner)), options_(options), trace_(trace), count_(flat.slots().size()),
        ready_(count_), done_(count_) {
    world.broadcast(flat.parameters(), 0);  // the initial state is rank 0's
    buffer_ = background_->allocate({std::min(options.fusion_mb << 18, flat.count())}, options.fp16 ? torch::kHalf : torch::kFloat);
    for (size_t i = 0; i < count_; ++i)
      hooks_.push_back(std::make_unique<GradientHook>(flat.slots()[i].parameter, [this, i] { announce(i); }));
    thread_ = std::thread([this] { serve(); });
  }
  ~DistributedOptimizer() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void step(double learning_rate) {
    {
      std::unique_lock lock(mutex_);
      ready_.assign(count_, true);  // what backward did not reach counts as zero
      waiting_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return failure_ || std::find(done_.begin(), done_.end(), false) == done_.end(); });
      if (failure_) std::rethrow_exception(failure_);
      ready_.assign(count_, false);
      done_.assign(count_, false);
      waiting_ = false;
    }
    // fp16 was averaged before the sum, so that it does not overflow.
    inner_->step(learning_rate, options_.fp16 ? 1.0 : 1.0 / background_->size());
  }

  int64_t fused_calls() const { return fused_calls_; }
  int64_t bytes_sent() const { return background_->traffic().bytes_sent; }

 private:
  void announce(size_t index) {
    const std::lock_guard lock(mutex_);
    ready_[index] = true;
    changed_.notify_all();
  }

  void serve() {
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

  bool pending() const {
    for (size_t i = 0; i < count_; ++i)
      if (ready_[i] && !done_[i]) return true;
    return false;
  }

  // Negotiate: ready is what is ready on every rank, the minimum of the marks. Then fuse, in the order of registration.
  void cycle() {
    auto marks = torch::zeros({static_cast<int64_t>(count_)}, torch::kInt32);
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < count_; ++i) marks.data_ptr<int32_t>()[i] = ready_[i] && !done_[i];
    }
    {
      const auto span = trace_.span("horovod", "negotiate");
      background_->all_reduce(marks, ReduceOp::min);
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
  size_t fuse(const std::vector<size_t>& agreed, size_t first) {
    const torch::NoGradGuard no_grad;
    const auto span = trace_.span("horovod", fmt::format("all-reduce from {}", flat_.slots()[agreed[first]].name));
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

  void exchange(const std::vector<torch::Tensor>& rows) {
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

  std::unique_ptr<Communicator> background_;
  FlatParameters& flat_;
  std::unique_ptr<Optimizer> inner_;
  FusionOptions options_;
  Trace& trace_;
  size_t count_;
  torch::Tensor buffer_;
  std::vector<std::unique_ptr<GradientHook>> hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> ready_, done_;
  bool waiting_ = false, stop_ = false;
  std::exception_ptr failure_;
  std::atomic<int64_t> fused_calls_{0};
  std::thread thread_;
};

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("03_data_parallel/05_horovod_style", "a distributed optimiser with negotiation and tensor fusion");
    Workload workload(options);
    FusionOptions fusion;
    options.app().add_option("--cycle-ms", fusion.cycle_ms, "how often the ranks agree on what is ready")->check(CLI::NonNegativeNumber);
    options.app().add_option("--fusion-mb", fusion.fusion_mb, "size of the fusion buffer, MiB")->check(CLI::PositiveNumber);
    options.app().add_flag("--fp16", fusion.fp16, "send half precision: half the bytes, 11 bits of each gradient");
    process.start(options);
    Communicator& world = process.world();

    // 2. Serial reference.
    const Reference reference = train_serially(workload, world, workload.steps());

    // 3. The loop of one process, with another optimiser: that is all that Horovod asks for.
    auto model = workload.make();
    check_same_model(world, *model);
    FlatParameters flat(*model);
    Trace trace(process.rank(), process.host());
    DistributedOptimizer optimizer(world, flat, workload.optimizer_maker()(flat.parameters(), flat.gradients()), fusion, trace);
    const auto step = [&](int64_t number) {
      process.set_step(number);
      const auto [x, y] = workload.samples(number, world.rank());
      flat.zero_grad();
      const auto loss = cross_entropy(model->forward(x), y);
      check_finite(loss);
      const auto span = trace.span("compute", "backward and step");
      loss.backward();
      optimizer.step(workload.learning_rate());
    };
    for (int64_t i = 0; i < workload.steps(); ++i) step(i);

    // 4. Verify: bits, or with half precision the direction of training.
    if (fusion.fp16) {
      std::vector<torch::Tensor> parameters;
      for (const auto& [name, tensor] : trainable_parameters(*model)) parameters.push_back(tensor.detach().flatten());
      std::vector<torch::Tensor> expected;
      for (const auto& tensor : reference.parameters) expected.push_back(tensor.flatten());
      expect_close("parameters, gradients sent as fp16", torch::cat(parameters), torch::cat(expected), 5e-2);
      const double distance = ((torch::cat(parameters) - torch::cat(expected)).norm() / torch::cat(expected).norm()).item<double>();
      if (process.is_root()) fmt::print("  parameters agree with the serial run's to {:.1e} (norm-relative) after {} steps on {} rank(s)\n", distance, workload.steps(), world.size());
    } else {
      verify_model(process, *model, reference, workload.steps());
    }
    if (process.is_root())
      fmt::print("  {} gradients in {:.1f} fused all-reduces per step\n", flat.slots().size(), static_cast<double>(optimizer.fused_calls()) / static_cast<double>(workload.steps()));

    // 5. Bytes: half of them with fp16. The marks of each cycle come on top.
    Comparison comparison;
    const int64_t before = optimizer.bytes_sent();
    step(workload.steps());
    comparison.bytes("bytes sent per step", all_reduce_bytes(flat.count(), world.size()) / (fusion.fp16 ? 2 : 1), static_cast<double>(optimizer.bytes_sent() - before));
    if (process.is_root()) fmt::print("{}", comparison.text());
    if (!options.trace.empty()) {
      const auto parts = process.rendezvous().all_gather(trace.to_json_events());
      if (process.is_root()) write_trace(options.trace, parts);
    }
  });
}
