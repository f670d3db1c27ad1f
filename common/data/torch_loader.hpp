// The loader's batches as tensors, without a copy; in pinned memory where there is a GPU.
#pragma once

#include <torch/types.h>

#include <optional>

#include "data/loader.hpp"   // Loader, LoaderOptions
#include "data/sampler.hpp"  // DistributedSampler

namespace manyranks {

struct TensorBatch {
  torch::Tensor images;  // (size, C, H, W) float; channels_last strides with Layout::hwc
  torch::Tensor labels;  // (size) int64
};

class TorchLoader {
 public:
  // Pinned buffers if a GPU is usable. Give options.keep = 2 where a copy to the device is still under way when next()
  // is called again.
  TorchLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);

  // Begins the epoch that the sampler stands in. The number of batches is the same on all ranks.
  void start(const DistributedSampler& sampler);
  // The tensors are views of the loader's own buffer: valid until `keep` further calls. Nothing at the end of the epoch.
  // A rank that has run out gets tensors of size 0 until all have.
  std::optional<TensorBatch> next();

  bool pinned() const { return pinned_; }
  const Dataset& dataset() const { return loader_.dataset(); }
  std::int64_t batches() const { return batches_; }  // of the epoch begun

 private:
  bool pinned_;
  Loader loader_;
  std::int64_t batches_ = 0;
};

}  // namespace manyranks
