#include "parallel/zero.hpp"

#include <algorithm>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

std::vector<NamedParameter> last_first(std::vector<NamedParameter> parameters) {
  std::reverse(parameters.begin(), parameters.end());
  return parameters;
}

int64_t elements_of(const std::vector<NamedParameter>& parameters) {
  int64_t count = 0;
  for (const auto& [name, tensor] : parameters) count += tensor.numel();
  return count;
}

}  // namespace

ZeroSharded::ZeroSharded(Communicator& world, torch::nn::Module& module, int stage, int64_t bucket_bytes, const MakeOptimizer& make_optimizer)
    : world_(world), in_order_(last_first(trainable_parameters(module))), row_(elements_of(in_order_), std::min(bucket_bytes, 4 * elements_of(in_order_)) / 2, world.size()) {
  if (stage != 1 && stage != 2) throw usage_error("ZeRO", "stages 1 and 2 are made here");
  torch::NoGradGuard no_grad;
  replicate(world_, module);
  parameters_ = allocate_shared(world_, row_.padded(), Tag::parameters);
  int64_t begin = 0;
  for (auto& [name, tensor] : in_order_) {
    const torch::Tensor place = view_like(parameters_, begin, tensor);
    place.copy_(tensor);
    tensor.set_data(place);
    begin += tensor.numel();
  }

  // My part of a chunk: stage 1 sums it inside the chunk, stage 2 has only that part, in a row of its own.
  std::vector<torch::Tensor> buffers, sums;
  if (stage == 1) {
    gradients_ = allocate_shared(world_, row_.padded(), Tag::gradients);
  } else {
    MemoryTag tag(Tag::gradients, "gradient shard");
    gradients_ = torch::zeros({row_.shard()}, parameters_.options());
    buffers = {allocate_shared(world_, row_.size(0), Tag::buffers), allocate_shared(world_, row_.size(0), Tag::buffers)};
  }
  for (size_t chunk = 0; chunk < row_.chunks(); ++chunk) {
    const int64_t part = row_.shard_size(chunk), mine = row_.begin(chunk) + world_.rank() * part;
    if (stage == 1) buffers.push_back(gradients_.narrow(0, row_.begin(chunk), row_.size(chunk)));
    sums.push_back(stage == 1 ? gradients_.narrow(0, mine, part) : gradients_.narrow(0, row_.shard_begin(chunk), part));
    MemoryTag tag(Tag::optimizer, "optimizer shard");
    optimizers_.push_back(make_optimizer(parameters_.narrow(0, mine, part), sums.back()));
  }
  buffers_ = std::make_unique<ChunkBuffers>(std::move(buffers));
  stream_ = std::make_unique<GradientStream>(in_order_, row_, *buffers_, [this, sums](size_t chunk, const torch::Tensor& gradients) {
    return world_.reduce_scatter_async(sums[chunk], gradients);
  });
}

std::vector<Optimizer*> ZeroSharded::optimizers() const {
  std::vector<Optimizer*> all;
  for (const auto& optimizer : optimizers_) all.push_back(optimizer.get());
  return all;
}

void ZeroSharded::step(double learning_rate, double gradient_scale) {
  stream_->finish();
  buffers_->wait_all();
  std::vector<Work> works;
  for (size_t chunk = 0; chunk < row_.chunks(); ++chunk) {  // a chunk travels while the next one is updated
    optimizers_[chunk]->step(learning_rate, gradient_scale);
    const torch::Tensor whole = parameters_.narrow(0, row_.begin(chunk), row_.size(chunk));
    const int64_t part = row_.shard_size(chunk);
    works.push_back(world_.all_gather_async(whole, whole.narrow(0, world_.rank() * part, part)));
  }
  for (Work& work : works) work.wait();
}

}  // namespace manyranks
