#include "comm/nccl_communicator.hpp"

#include <chrono>

#include "comm/doorbell.hpp"  // Clock
#include "launch/errors.hpp"

namespace manyranks {

struct NcclCommunicator::Flight {
  Flight(std::shared_ptr<NcclApi> api_, std::string what_) : api(std::move(api_)), event(api->make_event()), what(std::move(what_)), started(Clock::now()) {}
  ~Flight() { api->destroy_event(event); }
  std::shared_ptr<NcclApi> api;
  NcclApi::Event event;
  std::string what;
  Clock::time_point started;
  std::vector<torch::Tensor> tensors;  // alive until the event is reached
};

namespace {

// wait() orders the compute stream after the call; the host goes on.
class EventState : public Work::State {
 public:
  EventState(std::shared_ptr<NcclApi> api, NcclApi::Event event, std::shared_ptr<void> flight, std::function<void()> check)
      : api_(std::move(api)), event_(event), flight_(std::move(flight)), check_(std::move(check)) {}
  void wait() override {
    check_();
    api_->make_wait(api_->compute_stream(), event_);
  }
  bool done() const override { return api_->reached(event_); }

 private:
  std::shared_ptr<NcclApi> api_;
  NcclApi::Event event_;
  std::shared_ptr<void> flight_;
  std::function<void()> check_;
};

// NCCL knows no bool: on 0 and 1 "or" is max and "and" is min.
Plan without_bool(Plan plan) {
  if (plan.dtype != Dtype::boolean) return plan;
  plan.dtype = Dtype::uint8;
  plan.op = plan.op == ReduceOp::sum || plan.op == ReduceOp::max ? ReduceOp::max : ReduceOp::min;
  return plan;
}

}  // namespace

void check_nccl_version(NcclApi& api) {
  // The same major and minor: 2.30.7 is 23007.
  if (api.header_version() / 100 != api.library_version() / 100)
    throw unavailable_error("--backend nccl", fmt::format("built with NCCL {}, but {} is loaded", api.header_version(), api.library_version()), "unset LD_LIBRARY_PATH, or build again");
}

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclApi> api, NcclApi::Comm comm, std::shared_ptr<Fabric> fabric, std::vector<int> members, int rank,
                                   torch::Device device, std::string name, std::string why, EndJob end_job)
    : PlannedCommunicator(rank, static_cast<int>(members.size()), device, std::move(name), std::move(why)), api_(std::move(api)), comm_(comm), fabric_(std::move(fabric)),
      members_(std::move(members)), end_job_(std::move(end_job)), stream_(api_->make_stream()) {
  try {
    wait_ready("ncclCommInitRankConfig");
  } catch (...) {
    api_->destroy_stream(stream_);
    throw;
  }
  watchdog_ = std::thread([this] { watch(); });
}

NcclCommunicator::~NcclCommunicator() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  if (!aborted_) {
    // Only a communicator with nothing under way can be destroyed without its peers; any other is aborted.
    if (flights_.empty()) api_->destroy(comm_);
    else api_->abort(comm_);
  }
  flights_.clear();
  api_->destroy_stream(stream_);
}

void NcclCommunicator::wait_ready(const char* what) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(fabric_->timeout_s));
  for (;;) {
    const auto state = api_->state(comm_);
    if (state == NcclApi::State::good) return;
    const bool late = Clock::now() >= deadline;
    if (state == NcclApi::State::failed || late) {
      const std::string cause = late ? fmt::format("not everybody came within {:g} s", fabric_->timeout_s) : api_->last_error(comm_);
      fail(what, cause);
      std::rethrow_exception(broken_);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// Called with the first failure only; later ones change nothing.
void NcclCommunicator::fail(const std::string& operation, const std::string& cause) {
  std::string peers;
  for (int index = 0; index < fabric_->peers->size(); ++index)
    if (index != fabric_->peers->index()) peers += "; " + fabric_->peers->doing(index);
  std::lock_guard lock(mutex_);
  if (broken_) return;
  broken_ = std::make_exception_ptr(lost_peer_error(fmt::format("{} of '{}'", operation, name_), cause + peers, "NCCL_DEBUG=INFO, or a larger --timeout-s"));
  aborted_ = true;
  api_->abort(comm_);
}

void NcclCommunicator::enqueue(const Plan& given) {
  const Plan plan = without_bool(given);
  const size_t part = plan.count * size_of(plan.dtype);
  NcclApi& nccl = *api_;
  const auto copy_own = [&](size_t to, size_t from) {
    if (plan.out + to != plan.in + from && part) nccl.copy(plan.out + to, plan.in + from, part, stream_);
  };
  switch (plan.operation) {
    case Operation::all_reduce: return nccl.all_reduce(plan.in, plan.out, plan.count, plan.dtype, plan.op, comm_, stream_);
    case Operation::reduce_scatter: return nccl.reduce_scatter(plan.in, plan.out, plan.count, plan.dtype, plan.op, comm_, stream_);
    case Operation::reduce: return nccl.reduce(plan.in, plan.out, plan.count, plan.dtype, plan.op, plan.root, comm_, stream_);
    case Operation::all_gather: return nccl.all_gather(plan.in, plan.out, plan.count, plan.dtype, comm_, stream_);
    case Operation::broadcast: return nccl.broadcast(plan.in ? plan.in : plan.out, plan.out, plan.count, plan.dtype, plan.root, comm_, stream_);
    case Operation::send: return nccl.send(plan.in, plan.count, plan.dtype, plan.root, comm_, stream_);
    case Operation::recv: return nccl.recv(plan.out, plan.count, plan.dtype, plan.root, comm_, stream_);
    default: break;
  }
  // gather, scatter, all_to_all: sends and receives in one group, so that their order does not matter.
  const ExchangeShape shape(plan.operation, plan.root);
  if (shape.gives(rank_) && shape.takes(rank_)) copy_own(shape.out_part(rank_) * part, shape.in_part(rank_) * part);
  nccl.group_start();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (shape.gives(rank_) && shape.takes(peer)) nccl.send(plan.in + shape.in_part(peer) * part, plan.count, plan.dtype, peer, comm_, stream_);
    if (shape.takes(rank_) && shape.gives(peer)) nccl.recv(plan.out + shape.out_part(peer) * part, plan.count, plan.dtype, peer, comm_, stream_);
  }
  nccl.group_end();
}

int64_t NcclCommunicator::bytes_of(const Plan& plan) const {
  const auto part = static_cast<int64_t>(plan.count * size_of(plan.dtype)), others = static_cast<int64_t>(size_ - 1);
  switch (plan.operation) {
    case Operation::all_reduce: return 2 * others * part / size_;
    case Operation::send: return part;
    case Operation::recv: return 0;
    case Operation::reduce: return rank_ == plan.root ? 0 : part;
    case Operation::reduce_scatter: return others * part;
    default: break;
  }
  const ExchangeShape shape(plan.operation, plan.root);
  int64_t bytes = 0;
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && shape.gives(rank_) && shape.takes(peer)) bytes += part;
  return bytes;
}

std::shared_ptr<NcclCommunicator::Flight> NcclCommunicator::launch(const Plan& plan) {
  {
    std::lock_guard lock(mutex_);
    if (broken_) std::rethrow_exception(broken_);
  }
  fabric_->peers->begin_call(name_, ++sequence_, plan.call());
  auto flight = std::make_shared<Flight>(api_, fmt::format("{} #{}", plan.call().text(), sequence_));
  // What the compute stream has written so far must be there before NCCL reads it.
  api_->record(flight->event, api_->compute_stream());
  api_->make_wait(stream_, flight->event);
  if (plan.count > 0) enqueue(plan);
  wait_ready(name_of(plan.operation));  // a non-blocking communicator may still be launching
  api_->record(flight->event, stream_);
  bytes_sent_.fetch_add(bytes_of(plan), std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    flights_.push_back(flight);
  }
  changed_.notify_all();
  return flight;
}

// Blocking, as CUDA programs mean it: the compute stream goes on only after the call; the host does not stop.
void NcclCommunicator::run(const Plan& plan) { api_->make_wait(api_->compute_stream(), launch(plan)->event); }

Work NcclCommunicator::start(const Plan& plan, const torch::Tensor& out, const torch::Tensor& in) {
  auto flight = launch(plan);
  flight->tensors = {out, in};
  return Work(std::make_shared<EventState>(api_, flight->event, flight, [this] {
    std::lock_guard lock(mutex_);
    if (broken_) std::rethrow_exception(broken_);
  }));
}

void NcclCommunicator::wait_host(Flight& flight) {
  while (!api_->reached(flight.event)) {
    {
      std::lock_guard lock(mutex_);
      if (broken_) std::rethrow_exception(broken_);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void NcclCommunicator::barrier() {
  count(Operation::barrier);
  auto one = torch::zeros({1}, torch::TensorOptions(torch::kFloat32).device(device_));
  auto* data = static_cast<std::byte*>(one.data_ptr());
  Plan plan{Operation::all_reduce, data, data, 1, Dtype::float32, ReduceOp::sum, 0, 0};
  const auto flight = launch(plan);
  wait_host(*flight);
}

// The oldest call decides: the stream runs them in order.
void NcclCommunicator::watch() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || (!flights_.empty() && !broken_); });
    if (stop_) return;
    const auto oldest = flights_.front();
    lock.unlock();
    const bool done = api_->reached(oldest->event);
    const bool failed = !done && api_->state(comm_) == NcclApi::State::failed;
    const bool late = !done && std::chrono::duration<double>(Clock::now() - oldest->started).count() > fabric_->timeout_s;
    if (failed || late) {
      fail(oldest->what, failed ? api_->last_error(comm_) : fmt::format("not done within {:g} s", fabric_->timeout_s));
      try {
        std::rethrow_exception(broken_);
      } catch (const Error& error) {
        if (end_job_) end_job_(error);
      }
    }
    lock.lock();
    if (done) {
      flights_.pop_front();
      // A call that was waiting behind this one starts its time now.
      if (!flights_.empty()) flights_.front()->started = Clock::now();
      else fabric_->peers->end_call();
    } else {
      changed_.wait_for(lock, std::chrono::milliseconds(5), [&] { return stop_; });
    }
  }
}

torch::Tensor NcclCommunicator::allocate(std::vector<int64_t> sizes, torch::Dtype type) {
  const auto dtype = dtype_of(type);
  if (!dtype) throw usage_error("allocate", fmt::format("dtype {}, which no backend moves", c10::toString(type)));
  count(Operation::allocate);
  size_t bytes = size_of(*dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  void* memory = api_->allocate(std::max<size_t>(bytes, 1));
  return torch::from_blob(memory, sizes, [api = api_](void* data) { api->release(data); }, torch::TensorOptions(type).device(device_));
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  count(Operation::split);
  // Who is in it: gathered on the device, as everything here.
  auto mine = torch::tensor({static_cast<int64_t>(color), static_cast<int64_t>(key)}, torch::kInt64).to(device_);
  auto all = torch::zeros({2 * size_}, torch::TensorOptions(torch::kInt64).device(device_));
  all_gather(all, mine);
  const auto table = all.cpu();
  const auto at = [&](int rank, int column) { return table.data_ptr<int64_t>()[2 * rank + column]; };
  const int number = children_++;
  NcclApi::Comm child = api_->split(comm_, color, key);
  wait_ready("ncclCommSplit");
  if (color < 0) return nullptr;
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r)
    if (at(r, 0) == color) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return at(a, 1) < at(b, 1); });
  std::vector<int> members;
  int place = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    members.push_back(members_[ranks[i]]);
    if (ranks[i] == rank_) place = static_cast<int>(i);
  }
  return std::make_unique<NcclCommunicator>(api_, child, fabric_, members, place, device_, fmt::format("{}/{}.{}", name_, number, color), fmt::format("split from '{}'", name_), end_job_);
}

Traffic NcclCommunicator::traffic() const {
  Traffic traffic;
  traffic.bytes_sent = bytes_sent_;
  add_calls(traffic);
  return traffic;
}

void NcclCommunicator::reset_traffic() {
  bytes_sent_ = 0;
  reset_calls();
}

void NcclCommunicator::finish() {
  barrier();
  api_->finalize(comm_);
  wait_ready("ncclCommFinalize");
  fabric_->peers->set_finished();
}

}  // namespace manyranks
