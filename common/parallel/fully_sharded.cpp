#include "parallel/fully_sharded.hpp"

#include <algorithm>
#include <map>

#include "launch/errors.hpp"

namespace manyranks {

// One unit: where its shard lies, and the storage that its parameters are views of.
struct FullySharded::Sharded {
  Sharded(std::vector<NamedParameter> parameters, ChunkedRow chunked) : in_order(std::move(parameters)), row(chunked) {}

  std::vector<NamedParameter> in_order;  // last first; empty: a unit without parameters
  ChunkedRow row;
  int64_t shard_begin = 0;               // in the rank's shard
  torch::Tensor whole;                   // (row.padded()): its storage has memory only while gathered
  std::unique_ptr<GradientStream> stream;
  std::vector<Work> gathering;
  bool gathered = false;
};

FullySharded::FullySharded(Communicator& world, Model& model, int64_t bucket_bytes, const MakeOptimizer& make_optimizer) : world_(world), model_(model) {
  torch::NoGradGuard no_grad;
  replicate(world_, model);
  std::map<const void*, std::string> owner;
  int64_t shard = 0, largest_chunk = 0;
  for (const auto& unit : model.units()) {
    std::vector<NamedParameter> parameters;
    int64_t count = 0;
    // A unit registers only its own: a model without parameters in some unit (a pooling) is fine.
    for (const auto& item : unit->named_parameters()) {
      if (!item.value().requires_grad()) continue;
      if (!owner.emplace(item.value().unsafeGetTensorImpl(), item.key()).second)
        throw usage_error("ZeRO-3", "parameter " + item.key() + " belongs to two units (tied weights)", "untied weights, or --strategy zero2");
      parameters.push_back({item.key(), item.value()});
      count += item.value().numel();
    }
    std::reverse(parameters.begin(), parameters.end());
    auto sharded = std::make_unique<Sharded>(std::move(parameters), ChunkedRow(count, bucket_bytes / 2, world_.size()));
    sharded->shard_begin = shard;
    shard += sharded->row.shard();
    if (count) largest_chunk = std::max(largest_chunk, sharded->row.size(0));
    units_.push_back(std::move(sharded));
  }

  parameters_ = allocate_shared(world_, shard, Tag::parameters);  // peers read it when they gather
  {
    MemoryTag tag(Tag::gradients, "gradient shard");
    gradients_ = torch::zeros({shard}, parameters_.options());
  }
  buffers_ = std::make_unique<ChunkBuffers>(std::vector<torch::Tensor>{allocate_shared(world_, largest_chunk, Tag::buffers), allocate_shared(world_, largest_chunk, Tag::buffers)});
  for (size_t u = 0; u < units_.size(); ++u) {
    Sharded& unit = *units_[u];
    {
      MemoryTag tag(Tag::parameters, "gathered unit");
      unit.whole = torch::zeros({unit.row.padded()}, parameters_.options());
    }
    int64_t begin = 0;
    for (auto& [name, tensor] : unit.in_order) {
      const torch::Tensor place = view_like(unit.whole, begin, tensor);
      place.copy_(tensor);
      tensor.set_data(place);
      begin += tensor.numel();
    }
    for (size_t chunk = 0; unit.whole.numel() && chunk < unit.row.chunks(); ++chunk) {
      const int64_t part = unit.row.shard_size(chunk), from = unit.row.begin(chunk) + world_.rank() * part;
      parameters_.narrow(0, unit.shard_begin + unit.row.shard_begin(chunk), part).copy_(unit.whole.narrow(0, from, part));
    }
    unit.gathered = true;
    free(u);
    unit.stream = std::make_unique<GradientStream>(unit.in_order, unit.row, *buffers_, [this, &unit](size_t chunk, const torch::Tensor& gradients) {
      return world_.reduce_scatter_async(gradients_.narrow(0, unit.shard_begin + unit.row.shard_begin(chunk), unit.row.shard_size(chunk)), gradients);
    });
  }
  MemoryTag tag(Tag::optimizer, "optimizer shard");
  optimizer_ = make_optimizer(parameters_, gradients_);
  entered_ = units_.size();
}

FullySharded::~FullySharded() = default;

void FullySharded::gather(size_t u) {
  Sharded& unit = *units_[u];
  if (unit.gathered || !unit.gathering.empty() || unit.whole.numel() == 0) return;
  MemoryTag tag(Tag::parameters, "gathered unit");
  // Not resize_() and not copy_(): autograd would see a changed parameter. The storage's memory comes and goes beneath it.
  c10::StorageImpl* storage = unit.whole.storage().unsafeGetStorageImpl();
  const size_t bytes = unit.whole.numel() * unit.whole.element_size();
  storage->set_data_ptr_noswap(c10::GetAllocator(storage->device_type())->allocate(bytes));
  storage->set_nbytes(bytes);
  for (size_t chunk = 0; chunk < unit.row.chunks(); ++chunk)
    unit.gathering.push_back(world_.all_gather_async(unit.whole.narrow(0, unit.row.begin(chunk), unit.row.size(chunk)),
                                                     parameters_.narrow(0, unit.shard_begin + unit.row.shard_begin(chunk), unit.row.shard_size(chunk))));
}

void FullySharded::need(size_t u) {
  gather(u);
  Sharded& unit = *units_[u];
  for (Work& work : unit.gathering) work.wait();
  unit.gathering.clear();
  unit.gathered = true;
}

void FullySharded::free(size_t u) {
  Sharded& unit = *units_[u];
  if (!unit.gathered) return;
  c10::StorageImpl* storage = unit.whole.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(0);
  unit.gathered = false;
}

torch::Tensor FullySharded::forward(torch::Tensor x) {
  for (size_t u = 0; u < units_.size(); ++u) {
    need(u);
    if (u + 1 < units_.size()) gather(u + 1);
    x = model_.units()[u]->forward(x);
    free(u);
    if (x.requires_grad()) {
      x.register_hook([this, u](const torch::Tensor&) { enter_backward(u); });
    }
  }
  return x;
}

void FullySharded::follow() {
  for (size_t u = 0; u < units_.size(); ++u) {
    need(u);
    if (u + 1 < units_.size()) gather(u + 1);
    free(u);
  }
}

void FullySharded::enter_backward(size_t u) {
  torch::NoGradGuard no_grad;
  while (entered_ > u) {  // one by one: a unit that autograd passed by makes the same calls as on a rank where it did not
    if (entered_ < units_.size()) close(entered_);
    need(--entered_);
    if (entered_ > 0) gather(entered_ - 1);
  }
}

void FullySharded::close(size_t u) {
  if (units_[u]->whole.numel() == 0) return;
  units_[u]->stream->finish();
  free(u);
}

void FullySharded::step(double learning_rate, double gradient_scale) {
  enter_backward(0);
  close(0);
  entered_ = units_.size();
  buffers_->wait_all();
  optimizer_->step(learning_rate, gradient_scale);
}

std::vector<torch::Tensor> FullySharded::gather_all() {
  std::map<const void*, torch::Tensor> copies;
  for (size_t u = 0; u < units_.size(); ++u) {
    need(u);
    for (const auto& [name, tensor] : units_[u]->in_order) copies[tensor.unsafeGetTensorImpl()] = tensor.detach().clone();
    free(u);
  }
  std::vector<torch::Tensor> all;
  for (const auto& [name, tensor] : trainable_parameters(model_)) all.push_back(copies.at(tensor.unsafeGetTensorImpl()));
  return all;
}

int64_t FullySharded::two_largest_neighbours_bytes() const {
  int64_t elements = 0;
  for (size_t u = 0; u < units_.size(); ++u)
    elements = std::max(elements, units_[u]->row.padded() + (u > 0 ? units_[u - 1]->row.padded() : 0));
  return elements * static_cast<int64_t>(parameters_.element_size());
}

}  // namespace manyranks
