#include "data/torch_loader.hpp"

#include <torch/cuda.h>
#include "launch/torch.hpp"

#include <map>
#include <utility>

namespace manyranks {

namespace {

// Each buffer is a tensor of bytes, kept by its address until the loader gives it back.
LoaderOptions with_pinned_buffers(LoaderOptions options, bool pinned) {
  if (!pinned) return options;
  auto held = std::make_shared<std::map<void*, torch::Tensor>>();
  options.buffers.allocate = [held](std::size_t bytes) {
    auto tensor = torch::empty({static_cast<std::int64_t>(bytes)}, torch::TensorOptions(torch::kUInt8).pinned_memory(true));
    void* memory = tensor.data_ptr();
    held->emplace(memory, std::move(tensor));
    return memory;
  };
  options.buffers.release = [held](void* memory) { held->erase(memory); };
  return options;
}

}  // namespace

TorchLoader::TorchLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : pinned_(torch::cuda::is_available()), loader_(std::move(dataset), with_pinned_buffers(std::move(options), pinned_)) {}

void TorchLoader::start(const DistributedSampler& sampler) {
  batches_ = sampler.batches(loader_.options().batch);
  loader_.start(sampler.indices(), sampler.epoch(), batches_);
}

std::optional<TensorBatch> TorchLoader::next() {
  const Batch* batch = loader_.next();
  if (!batch) return std::nullopt;
  const ImageShape shape = dataset().shape();
  const auto floats = torch::TensorOptions(torch::kFloat32), integers = torch::TensorOptions(torch::kInt64);
  TensorBatch out;
  if (loader_.options().layout == Layout::chw)
    out.images = torch::from_blob(batch->values, {batch->size, shape.channels, shape.height, shape.width}, floats);
  else
    out.images = torch::from_blob(batch->values, {batch->size, shape.height, shape.width, shape.channels}, floats).permute({0, 3, 1, 2});
  out.labels = torch::from_blob(batch->labels, {batch->size}, integers);
  return out;
}

}  // namespace manyranks
