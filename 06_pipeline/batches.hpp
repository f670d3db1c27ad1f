// What 07_train learns, microbatch by microbatch.
#pragma once

#include "launch/torch.hpp"

#include <vector>

#include "train/text_gpt.hpp"  // TextGpt

namespace manyranks::pipeline {

struct Batch {
  std::vector<torch::Tensor> inputs, targets;  // by microbatch
};

// The gpt learns the text that chapter 04 gives it: sample for sample the same global batch, whoever holds which part of it.
inline Batch text_batch(const TextGpt& gpt, int64_t step, int replica, int microbatches, int64_t size) {
  Batch batch;
  for (int i = 0; i < microbatches; ++i) {
    const auto [tokens, target] = gpt.batch(step, (static_cast<int64_t>(replica) * microbatches + i) * size, size);
    batch.inputs.push_back(tokens), batch.targets.push_back(target);
  }
  return batch;
}

// Images: one noisy pattern per class, made up from (seed, step, replica) alone, so that a resumed run sees the same.
inline Batch image_batch(const ModelShape& shape, uint64_t seed, int64_t step, int replica, int microbatches, int64_t size, torch::Device device) {
  auto always = at::detail::createCPUGenerator(seed);
  auto random = at::detail::createCPUGenerator((seed * 1000003 + static_cast<uint64_t>(step)) * 1009 + static_cast<uint64_t>(replica));
  const auto patterns = torch::randn({shape.classes, shape.channels, shape.image, shape.image}, always);
  Batch batch;
  for (int i = 0; i < microbatches; ++i) {
    const auto target = torch::randint(0, shape.classes, {size}, random, torch::kInt64);
    const auto input = patterns.index({target}) + torch::randn({size, shape.channels, shape.image, shape.image}, random);
    batch.inputs.push_back(input.to(device)), batch.targets.push_back(target.to(device));
  }
  return batch;
}

}  // namespace manyranks::pipeline
