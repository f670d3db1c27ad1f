#include <torch/optim.h>
#include "reducer_rival.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "launch/errors.hpp"
#include "models/model.hpp"
#include "train/flat_parameters.hpp"

namespace manyranks {
namespace {

using Future = c10::ivalue::Future;

class RivalWork : public c10d::Work {
 public:
  explicit RivalWork(c10::intrusive_ptr<Future> future) : future_(std::move(future)) {}
  bool isCompleted() override { return future_->completed(); }
  bool wait(std::chrono::milliseconds) override {
    future_->waitAndThrow();
    return true;
  }
  c10::intrusive_ptr<Future> getFuture() override { return future_; }

 private:
  c10::intrusive_ptr<Future> future_;
};

// One thread that makes the calls in order, as ProcessGroupGloo has one: our own asynchronous calls cost the same hand-over.
class CommunicatorBackend : public c10d::Backend {
 public:
  explicit CommunicatorBackend(Communicator& world) : Backend(world.rank(), world.size()), world_(world), thread_([this] { serve(); }) {}
  ~CommunicatorBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  const std::string getBackendName() const override { return "manyranks"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    const at::Tensor tensor = tensors.at(0);
    return submit(tensor, [this, tensor] { world_.all_reduce(tensor.view({-1})); });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor tensor = tensors.at(0);
    return submit(tensor, [this, tensor, root = static_cast<int>(options.rootRank)] { world_.broadcast(tensor.view({-1}), root); });
  }

 private:
  struct Job {
    std::function<void()> body;
    at::Tensor tensor;
    c10::intrusive_ptr<Future> future;
  };
  c10::intrusive_ptr<c10d::Work> submit(const at::Tensor& tensor, std::function<void()> body) {
    auto future = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back({std::move(body), tensor, future});
    }
    changed_.notify_one();
    return c10::make_intrusive<RivalWork>(future);
  }
  void serve() {
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      try {
        job.body();
        job.future->markCompleted(c10::IValue(std::vector<at::Tensor>{job.tensor}));
      } catch (...) {
        job.future->setError(std::current_exception());
      }
    }
  }

  Communicator& world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

class ReducerRival : public Strategy {
 public:
  ReducerRival(Communicator& world, Model& model, const StrategyOptions& options, const std::string& own_optimizer) : world_(world), model_(model) {
    replicate(world, model);
    if (own_optimizer.empty()) {
      flat_ = std::make_unique<FlatParameters>(model);
      optimizer_ = options.make_optimizer(flat_->parameters(), flat_->gradients());
    }
    for (const auto& [name, tensor] : trainable_parameters(model)) parameters_.push_back(tensor);
    const auto& parameters = parameters_;
    if (own_optimizer == "sgd") theirs_ = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
    if (own_optimizer == "adam") theirs_ = std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));

    group_ = c10::make_intrusive<c10d::ProcessGroup>(world.rank(), world.size());
    backend_ = c10::make_intrusive<CommunicatorBackend>(world);
    group_->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend_);
    const std::vector<bool> dense(parameters.size(), false);
    const auto first = static_cast<size_t>(options.buckets.first_bytes), usual = static_cast<size_t>(options.buckets.bytes);
    auto [indices, limits] = c10d::compute_bucket_assignment_by_size(parameters, {first, usual}, dense);
    std::reverse(indices.begin(), indices.end());
    reducer_ = std::make_unique<c10d::Reducer>(parameters, indices, group_, dense, options.buckets.bytes, /*find_unused_parameters=*/false,
                                               /*gradient_as_bucket_view=*/!own_optimizer.empty(), std::unordered_map<size_t, std::string>{}, options.buckets.first_bytes,
                                               /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>{});
  }

  torch::Tensor forward(torch::Tensor x) override {
    reducer_->rebuild_buckets();  // does it once, after the first backward
    reducer_->prepare_for_forward();
    auto y = model_.forward(x);
    reducer_->prepare_for_backward({});
    return y;
  }
  void step(double learning_rate) override { step(learning_rate, 1.0); }
  void step(double learning_rate, double) override {  // the reducer has divided by the world size already
    if (theirs_) {
      theirs_->step();
      for (const auto& parameter : parameters_) parameter.mutable_grad() = torch::Tensor();  // views of buckets: zero_grad() throws
    } else {
      optimizer_->step(learning_rate, 1.0);
      flat_->zero_grad();
    }
  }
  std::vector<torch::Tensor> gather_parameters() override {
    std::vector<torch::Tensor> values;
    for (const auto& [name, tensor] : trainable_parameters(model_)) values.push_back(tensor.detach().clone());
    return values;
  }
  int64_t bytes_sent() const override { return world_.traffic().bytes_sent; }
  NamedTensors state() override { return {}; }
  void set_steps_done(int64_t) override {}

 private:
  Communicator& world_;
  Model& model_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<FlatParameters> flat_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<torch::optim::Optimizer> theirs_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace

std::unique_ptr<Strategy> make_reducer_rival(Communicator& world, Model& model, const StrategyOptions& options, const std::string& own_optimizer) {
  return std::make_unique<ReducerRival>(world, model, options, own_optimizer);
}

}  // namespace manyranks
