#include "parallel/replicate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <unordered_set>

#include "comm/communicator.hpp"
#include "launch/errors.hpp"

namespace manyranks {
namespace {

// Rows are sent in the order of their strides: a tensor of channels_last here and not there would arrive shuffled.
std::string layout_text(const torch::Tensor& tensor) {
  std::vector<int64_t> strides;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    strides.push_back(tensor.size(d) > 1 ? tensor.stride(d) : 0);  // of one element: never used
  std::vector<int64_t> plain;
  const auto contiguous = torch::empty(tensor.sizes(), torch::TensorOptions(torch::kByte).device(torch::kMeta));
  for (int64_t d = 0; d < tensor.dim(); ++d) plain.push_back(tensor.size(d) > 1 ? contiguous.stride(d) : 0);
  return strides == plain ? "" : fmt::format(", strides {}", c10::str(tensor.strides()));
}

std::string tensor_text(const torch::Tensor& tensor) {
  return fmt::format("{} {}{}", c10::toString(tensor.scalar_type()), c10::str(tensor.sizes()), layout_text(tensor));
}

struct Held {
  std::string text;  // "parameter 0 is fc1.weight Float [128, 784]"
  torch::Tensor tensor;
};

// All that makes a model: trainable parameters, frozen ones and buffers, each tensor once.
std::vector<Held> all_of(const torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  std::vector<Held> all;
  size_t parameters = 0, buffers = 0;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    const std::string frozen = item.value().requires_grad() ? "" : ", frozen";
    all.push_back({fmt::format("parameter {} is {} {}{}", parameters++, item.key(), tensor_text(item.value()), frozen),
                   item.value()});
  }
  for (const auto& item : module.named_buffers()) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    all.push_back({fmt::format("buffer {} is {} {}", buffers++, item.key(), tensor_text(item.value())), item.value()});
  }
  return all;
}

// FNV-1a: the same on every machine, unlike std::hash.
int64_t fingerprint(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211U;
  return static_cast<int64_t>(hash);
}

torch::Tensor gathered(Communicator& world, const torch::Tensor& mine, torch::Device device) {
  const auto in = mine.to(device);  // NCCL moves CUDA tensors only
  auto all = torch::empty({world.size(), in.numel()}, in.options());
  world.all_gather(all, in);
  return all.cpu();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Throws for the first line that differs, in the words of both.
void explain(const std::vector<std::string>& mine, const std::vector<std::string>& theirs, int peer) {
  const auto parameters = [](const std::vector<std::string>& lines) {
    return std::count_if(lines.begin(), lines.end(),
                         [](const std::string& line) { return line.starts_with("parameter"); });
  };
  const std::string counts = parameters(mine) == parameters(theirs)
                                 ? ""
                                 : fmt::format(" (this rank's model has {} parameters, rank {}'s has {})",
                                               parameters(mine), peer, parameters(theirs));
  for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
    const std::string here = i < mine.size() ? mine[i] : "there is nothing more",
                      there = i < theirs.size() ? theirs[i] : "there is nothing more";
    if (here != there)
      throw disagree_error("comparing models", fmt::format("{} here, but on rank {} {}{}", here, peer, there, counts),
                           "the same model and shape on every rank");
  }
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
  const std::vector<Held> held = all_of(module);
  if (held.empty()) throw usage_error("data parallel", "the model has no parameters");
  const torch::Device device = held[0].tensor.device();
  std::string mine;
  for (const Held& item : held) mine += item.text + "\n";
  // Texts only travel where their fingerprints differ.
  const auto prints =
      gathered(world, torch::tensor({fingerprint(mine), static_cast<int64_t>(mine.size())}, torch::kInt64), device);
  const auto* print = prints.data_ptr<int64_t>();
  int64_t longest = 0;
  bool same = true;
  for (int peer = 0; peer < world.size(); ++peer) {
    same = same && print[2 * peer] == print[0] && print[2 * peer + 1] == print[1];
    longest = std::max(longest, print[2 * peer + 1]);
  }
  if (same) return;
  auto padded = torch::zeros({longest}, torch::kUInt8);
  std::copy(mine.begin(), mine.end(), padded.data_ptr<uint8_t>());
  const auto texts = gathered(world, padded, device);
  for (int peer = 0; peer < world.size(); ++peer) {
    const auto* text = reinterpret_cast<const char*>(texts.data_ptr<uint8_t>()) + peer * longest;
    explain(lines_of(mine), lines_of(std::string(text, text + print[2 * peer + 1])), peer);
  }
  throw disagree_error("comparing models", "two ranks' models differ",
                       "the same model and shape on every rank");  // not from this one
}

void replicate(Communicator& world, torch::nn::Module& module) {
  check_same_model(world, module);
  torch::NoGradGuard no_grad;
  for (const Held& item : all_of(module)) {
    if (item.tensor.numel() == 0) continue;
    // As bytes: a buffer may be of a type that no backend knows (bool).
    const bool dense = item.tensor.is_non_overlapping_and_dense();
    torch::Tensor row = dense ? as_row(item.tensor) : item.tensor.detach().contiguous().view({-1});
    world.broadcast(row.view(torch::kUInt8), 0);
    if (!dense) item.tensor.detach().copy_(row.view(item.tensor.sizes()));
  }
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
