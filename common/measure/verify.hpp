// Verify, then time: a distributed result against its serial reference. A difference is exit 1 and says where.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

namespace manyranks {

// The same shape, dtype and bits. NaN equals NaN of the same bits; 0 and -0 differ.
void expect_equal_bits(const std::string& name, const torch::Tensor& got, const torch::Tensor& expected);

// ||got - expected|| / ||expected|| <= rtol, in double; relative to 1 where `expected` is all zero. Any NaN or infinity
// in `got` that `expected` does not have fails.
void expect_close(const std::string& name, const torch::Tensor& got, const torch::Tensor& expected, double rtol);

// Pairwise over lists (parameters of two models); the name gets the index.
void expect_equal_bits(const std::string& name, const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected);
void expect_close(const std::string& name, const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected, double rtol);

}  // namespace manyranks
