// Before the first step every rank must hold the same model: the same parameters in the same order, with rank 0's values.
#pragma once

#include "launch/torch.hpp"

#include <string>
#include <vector>

#include "measure/allocator.hpp"  // Tag

namespace manyranks {

class Communicator;

struct NamedParameter {
  std::string name;
  torch::Tensor tensor;
};

// Those that want a gradient, in the order of registration, each tensor once (tied ones under their first name).
std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module);

// Throws exit 70 naming the first parameter (frozen ones too) or buffer that differs between two ranks in name, shape,
// type, layout, or in whether it is frozen. Collective.
void check_same_model(Communicator& world, const torch::nn::Module& module);

// check_same_model(), then all parameters, frozen ones too, and all buffers of rank 0 for all. Collective.
void replicate(Communicator& world, torch::nn::Module& module);

// Communicator::allocate(), zeroed, and counted under `tag` for as long as it lives. Collective.
torch::Tensor allocate_shared(Communicator& world, int64_t count, Tag tag);

// The dense memory of a tensor that has no gaps, as one row: (numel), in the order of its strides.
torch::Tensor as_row(const torch::Tensor& dense);

// The part of the flat buffer `row` at `begin`, with the sizes and strides of `like`.
torch::Tensor view_like(const torch::Tensor& row, int64_t begin, const torch::Tensor& like);

// Loss of this rank's batch, or exit 70: a NaN on one rank would be everybody's after the next all-reduce.
void check_finite(const torch::Tensor& loss);

}  // namespace manyranks
