#include "parallel/gradient_buckets.hpp"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "launch/errors.hpp"

namespace manyranks {

GradientBuckets::GradientBuckets(Communicator& world, torch::nn::Module& module, BucketOptions options, Start start)
    : world_(world), options_(options), start_(std::move(start)), rebuilt_(!options.rebuild) {
  replicate(world_, module);
  int64_t count = 0;
  for (const NamedParameter& parameter : trainable_parameters(module)) {
    slots_.emplace_back();
    slots_.back().parameter = parameter;
    count += parameter.tensor.numel();
  }
  {
    MemoryTag tag(Tag::parameters, "flat parameters");
    parameters_ = torch::empty({count}, slots_.front().parameter.tensor.options().requires_grad(false));
  }
  gradients_ = allocate_shared(world_, count, Tag::gradients);
  // Backward meets the layers in reverse; within a layer the order is only a guess until the first step has been seen.
  std::vector<size_t> order(slots_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  assign(order);
  zero_grad();
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].hook = std::make_unique<GradientHook>(slots_[i].parameter.tensor, [this, i] { on_gradient(i); });
}

void GradientBuckets::assign(const std::vector<size_t>& order) {
  torch::NoGradGuard no_grad;
  const int64_t element = static_cast<int64_t>(parameters_.element_size());
  const torch::Tensor old_gradients = order_.empty() ? torch::Tensor() : gradients_.clone();
  std::vector<torch::Tensor> values;  // as they are now: the flat buffer may be what they lie in
  for (const size_t i : order) values.push_back(slots_[i].parameter.tensor.detach().clone(torch::MemoryFormat::Preserve));
  order_ = order;
  buckets_.clear();
  // What is full only when backward ends cannot be hidden: the last bucket is as small as the first.
  size_t tail = order.size();
  for (int64_t bytes = 0; tail > 0; --tail)
    if ((bytes += slots_[order[tail - 1]].parameter.tensor.numel() * element) > options_.first_bytes) break;
  int64_t begin = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    Slot& slot = slots_[order[k]];
    const int64_t limit = buckets_.size() <= 1 ? options_.first_bytes : options_.bytes;
    if (buckets_.empty() || buckets_.back().count * element >= limit || (k == tail && buckets_.back().count * element >= options_.first_bytes)) buckets_.push_back({begin});
    const int64_t old_begin = std::exchange(slot.begin, begin);
    slot.bucket = buckets_.size() - 1;
    torch::Tensor& tensor = slot.parameter.tensor;
    const torch::Tensor place = view_like(parameters_, begin, tensor);
    place.copy_(values[k]);
    tensor.set_data(place);
    slot.view = view_like(gradients_, begin, tensor);
    if (old_gradients.defined()) {
      slot.view.copy_(view_like(old_gradients, old_begin, tensor));
      tensor.mutable_grad() = slot.view;
    }
    begin += tensor.numel();
    buckets_.back().count += tensor.numel();
    ++buckets_.back().parameters;
  }
}

void GradientBuckets::zero_grad() {
  for (Slot& slot : slots_) {
    slot.parameter.tensor.mutable_grad() = torch::Tensor();
    slot.ready = false;
  }
  for (Range& bucket : buckets_) bucket.pending = bucket.parameters;
  next_bucket_ = 0;
}

void GradientBuckets::on_gradient(size_t index) {
  Slot& slot = slots_[index];
  if (slot.ready)
    throw disagree_error("backward", fmt::format("a second gradient of {} after the first was sent away", slot.parameter.name),
                         "finish() and zero_grad() between two steps; to accumulate, NoSync around all but the last backward()");
  torch::Tensor& gradient = slot.parameter.tensor.mutable_grad();
  if (gradient.data_ptr() != slot.view.data_ptr()) {  // else it was added in place, in the bucket
    slot.view.copy_(gradient);
    gradient = slot.view;
  }
  if (!synchronize_) return;
  if (!rebuilt_) seen_.push_back(index);
  slot.ready = true;
  if (--buckets_[slot.bucket].pending == 0) start_full_ones();
}

// In the order of the buckets, whatever the order in which they fill: every rank must make the same calls.
void GradientBuckets::start_full_ones() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0; ++next_bucket_) {
    const Range& bucket = buckets_[next_bucket_];
    works_.push_back(start_({next_bucket_, gradients_.narrow(0, bucket.begin, bucket.count), next_bucket_ + 1 == buckets_.size()}));
  }
}

void GradientBuckets::finish() {
  torch::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    if (slot.ready) continue;
    torch::Tensor& gradient = slot.parameter.tensor.mutable_grad();
    if (!gradient.defined()) {  // unused; otherwise it was filled in an earlier microbatch
      slot.view.zero_();
      gradient = slot.view;
    }
    --buckets_[slot.bucket].pending;
  }
  start_full_ones();
  for (Work& work : works_) work.wait();
  works_.clear();
  if (!rebuilt_) rebuild();
}

// Rank 0's order for all. Parameters that got no gradient go last, where they hold up nobody.
void GradientBuckets::rebuild() {
  rebuilt_ = true;
  std::vector<bool> is_seen(slots_.size());
  for (const size_t i : seen_) is_seen[i] = true;
  for (const size_t i : order_)
    if (!is_seen[i]) seen_.push_back(i);
  auto shared = torch::tensor(std::vector<int64_t>(seen_.begin(), seen_.end()), torch::kInt64).to(gradients_.device());
  world_.broadcast(shared, 0);
  shared = shared.cpu();
  const auto* from = shared.data_ptr<int64_t>();
  assign(std::vector<size_t>(from, from + shared.numel()));
  seen_.clear();
}

std::vector<std::pair<std::string, torch::Tensor>> GradientBuckets::by_parameter(const torch::Tensor& flat) const {
  std::vector<std::pair<std::string, torch::Tensor>> parts;
  for (const Slot& slot : slots_) parts.emplace_back(slot.parameter.name, flat.narrow(0, slot.begin, slot.parameter.tensor.numel()));
  return parts;
}

std::vector<std::string> GradientBuckets::names_in_order() const {
  std::vector<std::string> names;
  for (const size_t i : order_) names.push_back(slots_[i].parameter.name);
  return names;
}

}  // namespace manyranks
