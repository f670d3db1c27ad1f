#include "train/flat_parameters.hpp"

#include <unordered_set>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

torch::Tensor view_of_slot(const torch::Tensor& buffer, const FlatParameters::Slot& slot) {
  return buffer.as_strided(slot.parameter.sizes(), slot.parameter.strides(), buffer.storage_offset() + slot.begin);
}

}  // namespace

FlatParameters::FlatParameters(torch::nn::Module& module, int64_t multiple_of, const Allocate& allocate) {
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& parameter = item.value();
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (!parameter.is_non_overlapping_and_dense()) throw usage_error("flat parameters", item.key() + " has gaps in memory");
    if (!slots_.empty()) {
      const torch::Tensor& first = slots_.front().parameter;
      if (parameter.scalar_type() != first.scalar_type() || parameter.device() != first.device()) {
        throw usage_error("flat parameters", item.key() + " differs in type or device from " + slots_.front().name);
      }
    }
    slots_.push_back({item.key(), count_, parameter.numel(), parameter});
    count_ += parameter.numel();
  }
  if (slots_.empty()) throw usage_error("flat parameters", "the module has no parameters");

  torch::NoGradGuard no_grad;
  const int64_t padded = (count_ + multiple_of - 1) / multiple_of * multiple_of;
  const auto make = [&](const char* purpose) {
    const torch::Tensor buffer = allocate ? allocate(padded, purpose) : torch::empty({padded}, slots_.front().parameter.options().requires_grad(false));
    if (buffer.numel() != padded || !buffer.is_contiguous() || buffer.scalar_type() != slots_.front().parameter.scalar_type()) {
      throw usage_error("flat parameters", std::string("the memory given for ") + purpose + " does not fit");
    }
    return buffer.view({padded}).zero_();
  };
  parameters_ = make("parameters");
  gradients_ = make("gradients");
  for (Slot& slot : slots_) {
    const torch::Tensor view = view_of_slot(parameters_, slot);
    view.copy_(slot.parameter);
    slot.parameter.set_data(view);
    if (slot.parameter.requires_grad()) slot.parameter.mutable_grad() = view_of_slot(gradients_, slot);
  }
}

void FlatParameters::zero_grad() {
  check_views();
  gradients_.zero_();
}

void FlatParameters::check_views() const {
  const auto* values = static_cast<const char*>(parameters_.data_ptr());
  const auto* gradients = static_cast<const char*>(gradients_.data_ptr());
  const auto size = static_cast<int64_t>(parameters_.element_size());
  for (const Slot& slot : slots_) {
    if (slot.parameter.data_ptr() != values + slot.begin * size) {
      throw usage_error("flat parameters", slot.name + " no longer lies in the flat buffer", "move the module before making FlatParameters");
    }
    if (!slot.parameter.requires_grad()) continue;
    if (!slot.parameter.grad().defined() || slot.parameter.grad().data_ptr() != gradients + slot.begin * size) {
      throw usage_error("flat parameters", "the gradient of " + slot.name + " no longer lies in the flat buffer",
                        "FlatParameters::zero_grad() in place of the module's");
    }
  }
}

}  // namespace manyranks
