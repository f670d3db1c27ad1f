#include "comm/host_communicator.hpp"

#include <algorithm>

#include "comm/host_group.hpp"
#include "launch/errors.hpp"

namespace manyranks {

struct HostCommunicator::Plan {
  Operation operation;
  void* out = nullptr;
  const void* in = nullptr;
  size_t count = 0;  // elements of one rank's part
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
};

namespace {

std::optional<Dtype> dtype_of(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32: return Dtype::float32;
    case torch::kFloat64: return Dtype::float64;
    case torch::kFloat16: return Dtype::float16;
    case torch::kBFloat16: return Dtype::bfloat16;
    case torch::kInt32: return Dtype::int32;
    case torch::kInt64: return Dtype::int64;
    case torch::kUInt8: return Dtype::uint8;
    case torch::kBool: return Dtype::boolean;
    default: return std::nullopt;
  }
}

struct View {
  std::byte* data = nullptr;
  size_t count = 0;
  Dtype dtype = Dtype::uint8;
};

[[noreturn]] void refuse(Operation operation, const std::string& cause, const std::string& hint = "") { throw usage_error(name_of(operation), cause, hint); }

View view(Operation operation, const char* what, const torch::Tensor& tensor) {
  if (!tensor.defined()) refuse(operation, fmt::format("`{}` is an undefined tensor", what));
  if (!tensor.is_cpu()) refuse(operation, fmt::format("`{}` is on {}, this communicator moves CPU tensors", what, tensor.device().str()), "--backend nccl, or tensor.cpu()");
  if (!tensor.is_contiguous()) refuse(operation, fmt::format("`{}` is not contiguous", what), "tensor.contiguous()");
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) refuse(operation, fmt::format("`{}` has dtype {}, which no backend moves", what, c10::toString(tensor.scalar_type())));
  return {static_cast<std::byte*>(tensor.unsafeGetTensorImpl()->mutable_data()), static_cast<size_t>(tensor.numel()), *dtype};
}

void check_same_dtype(Operation operation, const View& out, const View& in) {
  if (out.dtype != in.dtype) refuse(operation, fmt::format("`out` is {}, `in` is {}", name_of(out.dtype), name_of(in.dtype)));
}

// `allowed`: where `in` may lie relative to `out`, or `out` to `in`.
void check_overlap(Operation operation, const View& out, const View& in, const std::byte* allowed_begin, const std::byte* actual_begin) {
  const size_t element = size_of(out.dtype);
  const bool apart = out.data + out.count * element <= in.data || in.data + in.count * element <= out.data;
  if (!apart && allowed_begin != actual_begin) refuse(operation, "`out` and `in` overlap", "the same tensor for both, or two that are apart");
}

class JobState : public Work::State {
 public:
  explicit JobState(std::shared_ptr<Lane::Job> job) : job_(std::move(job)) {}
  void wait() override { job_->wait(); }
  bool done() const override { return job_->done(); }

 private:
  std::shared_ptr<Lane::Job> job_;
};

class MessageState : public Work::State {
 public:
  MessageState(std::shared_ptr<Message> message, std::shared_ptr<Group> group) : message_(std::move(message)), group_(std::move(group)) {}
  void wait() override { group_->mailbox().wait(*message_); }
  bool done() const override { return message_->done.load(std::memory_order_acquire); }

 private:
  std::shared_ptr<Message> message_;
  std::shared_ptr<Group> group_;
};

}  // namespace

HostCommunicator::HostCommunicator(std::shared_ptr<Fabric> fabric, std::unique_ptr<Group> group, std::vector<int> members, std::string name, std::string why)
    : fabric_(std::move(fabric)), group_(std::move(group)), members_(std::move(members)), name_(std::move(name)), why_(std::move(why)), rank_(group_->rank()), size_(group_->size()) {}

HostCommunicator::~HostCommunicator() {
  {
    std::lock_guard lock(mail_mutex_);
    mail_stop_ = true;
  }
  mail_posted_.notify_all();
  if (mail_thread_.joinable()) mail_thread_.join();
}

void HostCommunicator::check_peer(Operation operation, int peer) const {
  if (peer < 0 || peer >= size_) refuse(operation, fmt::format("there is no rank {} in '{}' of {} ranks", peer, name_, size_));
}

HostCommunicator::Plan HostCommunicator::plan_reduce(Operation operation, const torch::Tensor& out_tensor, const torch::Tensor& in_tensor, int root, ReduceOp op) {
  check_peer(operation, root);
  const View in = view(operation, "in", in_tensor);
  Plan plan{operation, nullptr, in.data, in.count, in.dtype, op, root};
  if (operation == Operation::reduce && rank_ != root) return plan;  // `out` may be undefined
  if (out_tensor.unsafeGetTensorImpl() == in_tensor.unsafeGetTensorImpl() && operation != Operation::reduce_scatter) {
    plan.out = in.data;
    return plan;
  }
  const View out = view(operation, "out", out_tensor);
  check_same_dtype(operation, out, in);
  plan.out = out.data;
  const size_t parts = operation == Operation::reduce_scatter ? size_ : 1;
  plan.count = out.count;
  if (in.count != out.count * parts)
    refuse(operation, fmt::format("`in` has {} elements, `out` {}: expected {} x {}", in.count, out.count, parts, out.count));
  check_overlap(operation, out, in, in.data + (parts > 1 ? rank_ * out.count * size_of(in.dtype) : 0), out.data);
  return plan;
}

HostCommunicator::Plan HostCommunicator::plan_exchange(Operation operation, const torch::Tensor& out_tensor, const torch::Tensor& in_tensor, int root) {
  check_peer(operation, root);
  const ExchangeShape shape(operation, root);
  const size_t in_parts = shape.own_part_per_taker() ? size_ : 1, out_parts = shape.own_part_per_giver() ? size_ : 1;
  Plan plan{operation};
  plan.root = root;
  View in, out;
  if (shape.gives(rank_)) {
    in = view(operation, "in", in_tensor);
    if (in.count % in_parts) refuse(operation, fmt::format("`in` has {} elements, which {} ranks cannot share evenly", in.count, size_));
    plan.in = in.data, plan.count = in.count / in_parts, plan.dtype = in.dtype;
  }
  if (shape.takes(rank_)) {
    out = view(operation, "out", out_tensor);
    if (out.count % out_parts) refuse(operation, fmt::format("`out` has {} elements, which {} ranks cannot share evenly", out.count, size_));
    plan.out = out.data, plan.dtype = out.dtype;
    if (!shape.gives(rank_)) plan.count = out.count / out_parts;
  }
  if (shape.gives(rank_) && shape.takes(rank_)) {
    check_same_dtype(operation, out, in);
    if (in.count * out_parts != out.count * in_parts)
      refuse(operation, fmt::format("`in` has {} elements, `out` {}: parts of {} and of {}", in.count, out.count, in.count / in_parts, out.count / out_parts));
    const size_t part = plan.count * size_of(plan.dtype);
    if (operation == Operation::all_to_all) check_overlap(operation, out, in, nullptr, out.data);
    else check_overlap(operation, out, in, out.data + shape.out_part(rank_) * part, in.data + shape.in_part(rank_) * part);
  }
  return plan;
}

void HostCommunicator::run(const Plan& plan) {
  Group& group = *group_;
  switch (plan.operation) {
    case Operation::all_reduce: return group.all_reduce(plan.out, plan.in, plan.count, plan.dtype, plan.op);
    case Operation::reduce_scatter: return group.reduce_scatter(plan.out, plan.in, plan.count, plan.dtype, plan.op);
    case Operation::reduce: return group.reduce(plan.out, plan.in, plan.count, plan.dtype, plan.op, plan.root);
    default: return group.exchange(plan.operation, plan.out, plan.in, plan.count, plan.dtype, plan.root);
  }
}

Work HostCommunicator::submit(const Plan& plan, const torch::Tensor& out, const torch::Tensor& in) {
  count(plan.operation);
  return Work(std::make_shared<JobState>(lane_.submit([this, plan, out, in] { run(plan); })));
}

// The blocking and the asynchronous form of each, from one plan.
#define MANYRANKS_CALL(plan_)            \
  const Plan plan = plan_;               \
  count(plan.operation);                 \
  lane_.run([&] { run(plan); });

void HostCommunicator::all_reduce(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) { MANYRANKS_CALL(plan_reduce(Operation::all_reduce, out, in, 0, op)) }
void HostCommunicator::reduce_scatter(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) { MANYRANKS_CALL(plan_reduce(Operation::reduce_scatter, out, in, 0, op)) }
void HostCommunicator::reduce(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op) { MANYRANKS_CALL(plan_reduce(Operation::reduce, out, in, root, op)) }
void HostCommunicator::all_gather(const torch::Tensor& out, const torch::Tensor& in) { MANYRANKS_CALL(plan_exchange(Operation::all_gather, out, in, 0)) }
void HostCommunicator::broadcast(const torch::Tensor& inout, int root) { MANYRANKS_CALL(plan_exchange(Operation::broadcast, inout, inout, root)) }
void HostCommunicator::gather(const torch::Tensor& out, const torch::Tensor& in, int root) { MANYRANKS_CALL(plan_exchange(Operation::gather, out, in, root)) }
void HostCommunicator::scatter(const torch::Tensor& out, const torch::Tensor& in, int root) { MANYRANKS_CALL(plan_exchange(Operation::scatter, out, in, root)) }
void HostCommunicator::all_to_all(const torch::Tensor& out, const torch::Tensor& in) { MANYRANKS_CALL(plan_exchange(Operation::all_to_all, out, in, 0)) }
#undef MANYRANKS_CALL

Work HostCommunicator::all_reduce_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) { return submit(plan_reduce(Operation::all_reduce, out, in, 0, op), out, in); }
Work HostCommunicator::reduce_scatter_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) { return submit(plan_reduce(Operation::reduce_scatter, out, in, 0, op), out, in); }
Work HostCommunicator::reduce_async(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op) { return submit(plan_reduce(Operation::reduce, out, in, root, op), out, in); }
Work HostCommunicator::all_gather_async(const torch::Tensor& out, const torch::Tensor& in) { return submit(plan_exchange(Operation::all_gather, out, in, 0), out, in); }
Work HostCommunicator::broadcast_async(const torch::Tensor& inout, int root) { return submit(plan_exchange(Operation::broadcast, inout, inout, root), inout, inout); }
Work HostCommunicator::gather_async(const torch::Tensor& out, const torch::Tensor& in, int root) { return submit(plan_exchange(Operation::gather, out, in, root), out, in); }
Work HostCommunicator::scatter_async(const torch::Tensor& out, const torch::Tensor& in, int root) { return submit(plan_exchange(Operation::scatter, out, in, root), out, in); }
Work HostCommunicator::all_to_all_async(const torch::Tensor& out, const torch::Tensor& in) { return submit(plan_exchange(Operation::all_to_all, out, in, 0), out, in); }

void HostCommunicator::barrier() {
  count(Operation::barrier);
  lane_.run([&] { group_->meet(Call{Operation::barrier}); });
}

std::shared_ptr<Message> HostCommunicator::post(bool sending, const torch::Tensor& tensor, int peer, int tag) {
  const Operation operation = sending ? Operation::send : Operation::recv;
  check_peer(operation, peer);
  const View data = view(operation, sending ? "in" : "out", tensor);
  count(operation);
  Mailbox& mailbox = group_->mailbox();
  return sending ? mailbox.send(peer, tag, data.data, data.count, data.dtype) : mailbox.recv(peer, tag, data.data, data.count, data.dtype);
}

void HostCommunicator::send(const torch::Tensor& in, int to, int tag) { group_->mailbox().wait(*post(true, in, to, tag)); }
void HostCommunicator::recv(const torch::Tensor& out, int from, int tag) { group_->mailbox().wait(*post(false, out, from, tag)); }
Work HostCommunicator::send_async(const torch::Tensor& in, int to, int tag) { return carry(post(true, in, to, tag), in); }
Work HostCommunicator::recv_async(const torch::Tensor& out, int from, int tag) { return carry(post(false, out, from, tag), out); }

Work HostCommunicator::carry(std::shared_ptr<Message> message, const torch::Tensor& tensor) {
  message->keep_alive = std::make_shared<torch::Tensor>(tensor);
  if (!message->done.load(std::memory_order_acquire)) {
    std::lock_guard lock(mail_mutex_);
    mail_pending_ = true;
    if (!mail_thread_.joinable()) mail_thread_ = std::thread([this] { serve_mail(); });
    mail_posted_.notify_all();
  }
  return Work(std::make_shared<MessageState>(std::move(message), group_));
}

void HostCommunicator::serve_mail() {
  for (;;) {
    {
      std::unique_lock lock(mail_mutex_);
      mail_posted_.wait(lock, [&] { return mail_pending_ || mail_stop_; });
      if (mail_stop_) return;
      mail_pending_ = false;
    }
    group_->mailbox().drain(mail_stop_);
  }
}

// For setting things up: short texts, by rank.
std::vector<std::string> HostCommunicator::all_gather_text(const std::string& mine) {
  constexpr size_t length = 512;
  if (mine.size() >= length) throw usage_error("all_gather", "text too long: " + mine);
  std::string in = mine, out(length * size_, '\0');
  in.resize(length, '\0');
  group_->exchange(Operation::all_gather, out.data(), in.data(), length, Dtype::uint8, 0);
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r) texts.emplace_back(out.data() + r * length);
  return texts;
}

torch::Tensor HostCommunicator::allocate(std::vector<int64_t> sizes, torch::Dtype type) {
  const auto dtype = dtype_of(type);
  if (!dtype) refuse(Operation::allocate, fmt::format("dtype {} is not supported", c10::toString(type)));
  size_t count_ = 1;
  for (const int64_t size : sizes) count_ *= static_cast<size_t>(size);
  count(Operation::allocate);
  constexpr size_t page = 4096;
  const size_t bytes = std::max(page, (count_ * size_of(*dtype) + page - 1) / page * page);
  std::shared_ptr<Allocation> allocation;
  lane_.run([&] {
    group_->meet(Call{Operation::allocate, *dtype, ReduceOp::sum, 0, count_});
    const std::vector<int> here = fabric_->members_on_my_host(members_);
    std::vector<int> indices;
    for (const int place : here) indices.push_back(fabric_->peers->index_of(members_[place]));
    const bool creator = here[0] == rank_;
    const auto exchange = [&](const std::string& mine) { return all_gather_text(mine); };
    const uint32_t id = static_cast<uint32_t>(std::stoul(exchange(creator ? std::to_string(fabric_->peers->next_allocation_id()) : "0")[here[0]]));
    auto segment = share_segment(bytes * here.size(), fmt::format("{} bytes of registered memory per rank", bytes), creator, here[0], exchange);
    allocation = fabric_->peers->add_allocation(std::move(segment), bytes, indices, id);
  });
  std::byte* mine = allocation->parts[fabric_->peers->index()];
  return torch::from_blob(mine, sizes, [allocation](void*) {}, torch::TensorOptions(type));
}

std::unique_ptr<Communicator> HostCommunicator::split(int color, int key) {
  count(Operation::split);
  std::unique_ptr<Communicator> child;
  lane_.run([&] {
    group_->meet(Call{Operation::split});
    const int number = children_++;
    const int64_t mine[2] = {color, key};
    std::vector<int64_t> all(2 * size_);
    group_->exchange(Operation::all_gather, all.data(), mine, 2, Dtype::int64, 0);
    const auto exchange = [&](const std::string& text) { return all_gather_text(text); };
    if (color < 0) return fabric_->join_as_stranger(exchange);
    std::vector<int> positions;
    for (int r = 0; r < size_; ++r)
      if (all[2 * r] == color) positions.push_back(r);
    std::stable_sort(positions.begin(), positions.end(), [&](int a, int b) { return all[2 * a + 1] < all[2 * b + 1]; });
    std::vector<int> members;
    for (const int r : positions) members.push_back(members_[r]);
    const std::string name = fmt::format("{}/{}.{}", name_, number, color);
    auto group = fabric_->make_group(members, positions, name, exchange);
    child = std::make_unique<HostCommunicator>(fabric_, std::move(group), members, name, fmt::format("split from '{}'", name_));
  });
  return child;
}

Traffic HostCommunicator::traffic() const {
  Traffic traffic;
  traffic.bytes_sent = group_->bytes_sent() + group_->mailbox().bytes_sent();
  for (size_t i = 0; i < calls_.size(); ++i) {
    const int64_t calls = calls_[i].load(std::memory_order_relaxed);
    traffic.calls += calls;
    if (calls) traffic.calls_by_operation[name_of(static_cast<Operation>(i))] = calls;
  }
  return traffic;
}

void HostCommunicator::reset_traffic() {
  group_->reset_bytes_sent();
  group_->mailbox().reset_bytes_sent();
  for (auto& calls : calls_) calls = 0;
}

void HostCommunicator::finish() {
  lane_.run([&] { group_->meet(Call{Operation::finish}); });
  fabric_->peers->set_finished();
}

bool HostCommunicator::claim_failure(int code, const std::string&) noexcept { return fabric_->peers->claim_failure(code); }
void HostCommunicator::end_peers() noexcept { fabric_->peers->end_others(1.0); }

}  // namespace manyranks
