// The part of a model between two cuts, after its forward pass: what its backward pass needs. Backward runs whole, or in two
// parts: first the gradient of the input, for which another stage waits, later those of the weights.
//
// The weight part must not repeat the way back through the layers. Each parameter hangs from one node of the graph (the linear
// layer's, the convolution's, ...). The input part notes the gradient that arrives at each of these nodes; the weight part starts
// there and goes one step, to the parameters. Scales and shifts of normalisations are the exception: their gradients are sums that
// the input part makes anyway, so it hands them over, and the weight part has nothing to do for them.
#pragma once

#include "launch/torch.hpp"

#include <vector>

namespace manyranks::pipeline {

using NodePointer = decltype(torch::autograd::Edge::function);  // its kind has changed between versions of LibTorch

class Tape {
 public:
  // `output` was made from `input` and `parameters`. Holds the graph, not the output's data. `input` requires no gradient on the
  // first stage (tokens, images): then there is no gradient of it.
  Tape(torch::Tensor input, const torch::Tensor& output, std::vector<torch::Tensor> parameters);

  struct Gradients {
    torch::Tensor input;                 // undefined on the first stage
    std::vector<torch::Tensor> weights;  // as `parameters`; undefined where one is not used
  };
  Gradients backward(const torch::Tensor& output_gradient);

  torch::Tensor backward_input(const torch::Tensor& output_gradient);
  std::vector<torch::Tensor> backward_weight();  // once, after backward_input

 private:
  // Where parameters hang, and which. Most layers have one input to their node; a node with several is captured at each.
  struct Group {
    NodePointer node;
    std::vector<uint32_t> inputs;
    std::vector<size_t> parameters;  // indices
    std::vector<torch::Tensor> captured;
  };
  void find_groups();

  torch::Tensor input_;
  torch::autograd::Edge root_;
  std::vector<torch::Tensor> parameters_;
  std::vector<Group> groups_;
  std::vector<size_t> early_;                   // parameters whose gradients the input part makes
  std::vector<torch::Tensor> early_gradients_;
  std::vector<NodePointer> unneeded_;  // nodes that only the input part needs
};

}  // namespace manyranks::pipeline
