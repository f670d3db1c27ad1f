#include "comm/host_communicator.hpp"

#include <algorithm>

#include "comm/segment.hpp"
#include "launch/errors.hpp"

namespace manyranks {
namespace {

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
    : PlannedCommunicator(group->rank(), group->size(), torch::kCPU, std::move(name), std::move(why)), fabric_(std::move(fabric)), group_(std::move(group)), members_(std::move(members)) {}

HostCommunicator::~HostCommunicator() {
  {
    std::lock_guard lock(mail_mutex_);
    mail_stop_ = true;
  }
  mail_posted_.notify_all();
  if (mail_thread_.joinable()) mail_thread_.join();
}

void HostCommunicator::run_collective(const Plan& plan) {
  Group& group = *group_;
  switch (plan.operation) {
    case Operation::all_reduce: return group.all_reduce(plan.out, plan.in, plan.count, plan.dtype, plan.op);
    case Operation::reduce_scatter: return group.reduce_scatter(plan.out, plan.in, plan.count, plan.dtype, plan.op);
    case Operation::reduce: return group.reduce(plan.out, plan.in, plan.count, plan.dtype, plan.op, plan.root);
    default: return group.exchange(plan.operation, plan.out, plan.in, plan.count, plan.dtype, plan.root);
  }
}

void HostCommunicator::run(const Plan& plan) {
  if (plan.operation == Operation::send || plan.operation == Operation::recv) return group_->mailbox().wait(*post(plan));
  lane_.run([this, plan] { run_collective(plan); });
}

Work HostCommunicator::start(const Plan& plan, const torch::Tensor& out, const torch::Tensor& in) {
  if (plan.operation == Operation::send || plan.operation == Operation::recv) return carry(post(plan, std::make_shared<torch::Tensor>(in)));
  return Work(std::make_shared<JobState>(lane_.submit([this, plan, out, in] { run_collective(plan); })));
}

void HostCommunicator::barrier() {
  count(Operation::barrier);
  lane_.run([&] { group_->meet(Call{Operation::barrier}); });
}

std::shared_ptr<Message> HostCommunicator::post(const Plan& plan, std::shared_ptr<void> keep_alive) {
  Mailbox& mailbox = group_->mailbox();
  if (plan.operation == Operation::send) return mailbox.send(plan.root, plan.tag, plan.in, plan.count, plan.dtype, std::move(keep_alive));
  return mailbox.recv(plan.root, plan.tag, plan.out, plan.count, plan.dtype, std::move(keep_alive));
}

Work HostCommunicator::carry(std::shared_ptr<Message> message) {
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
    try {
      group_->mailbox().drain(mail_stop_);
    } catch (const std::exception&) {
      // A broken wire: who waits for its message meets the same error, and throws it where it can be caught.
    }
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
  if (!dtype) throw usage_error("allocate", fmt::format("dtype {}, which no backend moves", c10::toString(type)));
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
  add_calls(traffic);
  return traffic;
}

void HostCommunicator::reset_traffic() {
  group_->reset_bytes_sent();
  group_->mailbox().reset_bytes_sent();
  reset_calls();
}

void HostCommunicator::finish() {
  lane_.run([&] { group_->meet(Call{Operation::finish}); });
  fabric_->peers->set_finished();
}

bool HostCommunicator::claim_failure(int code, const std::string&) noexcept { return fabric_->peers->claim_failure(code); }
void HostCommunicator::end_peers() noexcept { fabric_->peers->end_others(1.0); }

}  // namespace manyranks
