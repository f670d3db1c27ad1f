#include "parallel/replicate.hpp"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "comm/communicator.hpp"
#include "launch/errors.hpp"

namespace manyranks {
namespace {

std::string shape_text(const torch::Tensor& tensor) { return fmt::format("{} {}", c10::toString(tensor.scalar_type()), c10::str(tensor.sizes())); }

// FNV-1a: the same on every machine, unlike std::hash.
int64_t fingerprint(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211U;
  return static_cast<int64_t>(hash);
}

torch::Tensor gathered(Communicator& world, const std::vector<int64_t>& mine, torch::Device device) {
  const auto in = torch::tensor(mine, torch::kInt64).to(device);  // NCCL moves CUDA tensors only
  auto all = torch::empty({world.size(), in.numel()}, in.options());
  world.all_gather(all, in);
  return all.cpu();
}

}  // namespace

std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  std::vector<NamedParameter> parameters;
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second) parameters.push_back({item.key(), item.value()});
  if (parameters.empty()) throw usage_error("data parallel", "the model has no parameter that wants a gradient");
  return parameters;
}

void check_same_model(Communicator& world, const torch::nn::Module& module) {
  const auto parameters = trainable_parameters(module);
  const auto counts = gathered(world, {static_cast<int64_t>(parameters.size())}, parameters[0].tensor.device());
  for (int peer = 0; peer < world.size(); ++peer)
    if (const auto theirs = counts[peer][0].item<int64_t>(); theirs != static_cast<int64_t>(parameters.size()))
      throw disagree_error("comparing models", fmt::format("this rank's model has {} parameters, rank {}'s has {}", parameters.size(), peer, theirs),
                           "the same model and shape on every rank");
  std::vector<int64_t> prints;
  for (const auto& [name, tensor] : parameters) prints.push_back(fingerprint(name + shape_text(tensor)));
  const auto all = gathered(world, prints, parameters[0].tensor.device());
  for (int peer = 0; peer < world.size(); ++peer)
    for (size_t i = 0; i < prints.size(); ++i)
      if (all[peer][static_cast<int64_t>(i)].item<int64_t>() != prints[i])
        throw disagree_error("comparing models", fmt::format("parameter {} is {} {} here, and something else on rank {}", i, parameters[i].name,
                                                             shape_text(parameters[i].tensor), peer),
                             "the same model and shape on every rank");
}

void replicate(Communicator& world, torch::nn::Module& module) {
  check_same_model(world, module);
  torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : trainable_parameters(module)) world.broadcast(as_row(tensor), 0);
  for (const auto& buffer : module.buffers()) world.broadcast(as_row(buffer), 0);
}

torch::Tensor allocate_shared(Communicator& world, int64_t count, Tag tag) {
  const torch::Tensor memory = world.allocate({count}, torch::kFloat);
  CountingAllocator::get().note(tag, memory.nbytes());
  const auto bytes = static_cast<int64_t>(memory.nbytes());
  const auto give_back = [memory, tag, bytes](void*) { CountingAllocator::get().note(tag, -bytes); };
  return torch::from_blob(memory.data_ptr(), {count}, give_back, memory.options()).zero_();
}

torch::Tensor as_row(const torch::Tensor& dense) { return dense.detach().as_strided({dense.numel()}, {1}, dense.storage_offset()); }

torch::Tensor view_like(const torch::Tensor& row, int64_t begin, const torch::Tensor& like) {
  return row.as_strided(like.sizes(), like.strides(), row.storage_offset() + begin);
}

void check_finite(const torch::Tensor& loss) {
  if (const double value = loss.item<double>(); !std::isfinite(value))
    throw disagree_error("forward", fmt::format("this rank's loss is {}", value), "a smaller learning rate, or look at this rank's data");
}

}  // namespace manyranks
