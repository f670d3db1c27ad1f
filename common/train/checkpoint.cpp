#include "train/checkpoint.hpp"

#include <ATen/Context.h>

#include <charconv>
#include <unordered_set>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

const std::vector<std::pair<torch::Dtype, const char*>>& dtypes() {
  static const std::vector<std::pair<torch::Dtype, const char*>> table = {
      {torch::kFloat, "F32"}, {torch::kDouble, "F64"}, {torch::kHalf, "F16"},  {torch::kBFloat16, "BF16"},
      {torch::kLong, "I64"},  {torch::kInt, "I32"},    {torch::kShort, "I16"}, {torch::kChar, "I8"},
      {torch::kByte, "U8"},   {torch::kBool, "BOOL"},  {torch::kFloat8_e4m3fn, "F8_E4M3"}, {torch::kFloat8_e5m2, "F8_E5M2"}};
  return table;
}

std::string dtype_name(const std::string& tensor, torch::Dtype dtype) {
  for (const auto& [torch_type, name] : dtypes()) {
    if (torch_type == dtype) return name;
  }
  throw usage_error("save tensor " + tensor, std::string("safetensors has no dtype ") + c10::toString(dtype));
}

torch::Tensor read_tensor(const safetensors::Reader& reader, const safetensors::Entry& entry, const std::string& path) {
  for (const auto& [torch_type, name] : dtypes()) {
    if (name != entry.dtype) continue;
    const torch::Tensor tensor = torch::empty(entry.shape, torch_type);
    reader.read(entry, tensor.data_ptr());
    return tensor;
  }
  throw data_error("load " + path, "tensor " + entry.name + " has dtype " + entry.dtype + ", which LibTorch cannot hold here");
}

// Every name must be on both sides; every tensor must fit. Decided from the header, before a byte is copied.
void check_fit(const safetensors::Reader& reader, const NamedTensors& tensors, const std::string& path) {
  std::unordered_set<std::string> wanted;
  for (const auto& [name, tensor] : tensors) {
    wanted.insert(name);
    const safetensors::Entry* entry = reader.find(name);
    if (entry == nullptr) throw data_error("load " + path, "the file has no tensor " + name);
    if (entry->dtype != dtype_name(name, tensor.scalar_type())) {
      throw data_error("load " + path, "tensor " + name + " is " + entry->dtype + ", expected " + dtype_name(name, tensor.scalar_type()));
    }
    if (tensor.sizes() != torch::IntArrayRef(entry->shape)) {
      throw data_error("load " + path, c10::str("tensor ", name, " is ", torch::IntArrayRef(entry->shape), ", expected ", tensor.sizes()));
    }
  }
  for (const safetensors::Entry& entry : reader.header().entries) {
    if (!wanted.contains(entry.name)) throw data_error("load " + path, "nothing here is called " + entry.name);
  }
}

void copy_in(const safetensors::Reader& reader, const NamedTensors& tensors, const std::string& path) {
  torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    torch::Tensor target = tensor.detach();  // also a leaf that requires gradients, without touching its history
    target.copy_(read_tensor(reader, *reader.find(name), path));
  }
}

// One generator per device type in use: dropout and shuffles go on where they were.
std::vector<std::pair<std::string, at::Generator>> generators(const torch::nn::Module& model) {
  std::vector<std::pair<std::string, at::Generator>> all = {{"random.cpu", at::globalContext().defaultGenerator(torch::Device(torch::kCPU))}};
  const auto parameters = model.parameters();
  if (!parameters.empty() && parameters.front().is_cuda()) {
    all.emplace_back("random.cuda", at::globalContext().defaultGenerator(parameters.front().device()));
  }
  return all;
}

NamedTensors everything(const TrainingState& state) {
  NamedTensors all;
  for (auto& [name, tensor] : named_state(*state.model)) all.emplace_back("model." + name, tensor);
  if (state.optimizer != nullptr) {
    for (auto& [name, tensor] : state.optimizer->state()) all.emplace_back("optimizer." + name, tensor);
  }
  return all;
}

constexpr const char* optimizer_steps = "optimizer.steps_done";

}  // namespace

void save_tensors(const std::string& path, const NamedTensors& tensors, const safetensors::Metadata& metadata) {
  std::vector<torch::Tensor> kept;  // CPU copies live until the file is written
  std::vector<safetensors::Source> sources;
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().cpu().contiguous());
    sources.push_back({name, dtype_name(name, tensor.scalar_type()), tensor.sizes().vec(), kept.back().data_ptr()});
  }
  safetensors::save(path, sources, metadata);
}

NamedTensors load_tensors(const std::string& path, safetensors::Metadata* metadata) {
  const safetensors::Reader reader(path);
  if (metadata != nullptr) *metadata = reader.header().metadata;
  NamedTensors tensors;
  for (const safetensors::Entry& entry : reader.header().entries) tensors.emplace_back(entry.name, read_tensor(reader, entry, path));
  return tensors;
}

void load_tensors_into(const std::string& path, const NamedTensors& tensors) {
  const safetensors::Reader reader(path);
  check_fit(reader, tensors, path);
  copy_in(reader, tensors, path);
}

NamedTensors named_state(const torch::nn::Module& module) {
  NamedTensors all;
  std::unordered_set<const void*> seen;
  for (const auto& dictionary : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : dictionary) {
      if (seen.insert(item.value().unsafeGetTensorImpl()).second) all.emplace_back(item.key(), item.value());
    }
  }
  return all;
}

void save_checkpoint(const std::string& path, const TrainingState& state) {
  NamedTensors all = everything(state);
  for (auto& [name, generator] : generators(*state.model)) all.emplace_back(name, generator.get_state());
  safetensors::Metadata metadata;
  for (const auto& [name, value] : state.counters) metadata["counter." + name] = std::to_string(value);
  if (state.optimizer != nullptr) metadata[optimizer_steps] = std::to_string(state.optimizer->steps_done());
  save_tensors(path, all, metadata);
}

void load_checkpoint(const std::string& path, TrainingState& state) {
  const safetensors::Reader reader(path);
  const auto number = [&](const std::string& key, const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) throw data_error("load " + path, key + " is not a number: " + text);
    return value;
  };
  Counters counters;
  const std::string prefix = "counter.";
  for (const auto& [key, text] : reader.header().metadata) {
    if (key.starts_with(prefix)) counters[key.substr(prefix.size())] = number(key, text);
  }
  int64_t steps = 0;
  if (state.optimizer != nullptr) {
    const auto found = reader.header().metadata.find(optimizer_steps);
    if (found == reader.header().metadata.end()) throw data_error("load " + path, "the file has no optimiser state");
    steps = number(found->first, found->second);
  }

  auto states = generators(*state.model);
  NamedTensors all = everything(state), random;
  for (auto& [name, generator] : states) random.emplace_back(name, generator.get_state());
  NamedTensors both = all;
  both.insert(both.end(), random.begin(), random.end());
  check_fit(reader, both, path);
  copy_in(reader, both, path);  // get_state() gave copies: set_state() below makes them count
  for (size_t i = 0; i < states.size(); ++i) states[i].second.set_state(random[i].second);
  if (state.optimizer != nullptr) state.optimizer->set_steps_done(steps);
  state.counters = std::move(counters);
}

}  // namespace manyranks
