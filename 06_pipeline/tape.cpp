#include "tape.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace manyranks::pipeline {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Gradients at `outputs`, which may be any place of the graph; touches no .grad.
static variable_list run_backward(const edge_list& roots, const variable_list& gradients, bool keep_graph, const edge_list& outputs) {
  return torch::autograd::Engine::get_default_engine().execute(roots, gradients, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/false, outputs);
}

Tape::Tape(torch::Tensor input, const torch::Tensor& output, std::vector<torch::Tensor> parameters)
    : input_(std::move(input)), root_(torch::autograd::impl::gradient_edge(output)), parameters_(std::move(parameters)) {}

Tape::Gradients Tape::backward(const torch::Tensor& output_gradient) {
  edge_list wanted;
  for (const torch::Tensor& parameter : parameters_) wanted.push_back(torch::autograd::impl::gradient_edge(parameter));
  if (input_.requires_grad()) wanted.push_back(torch::autograd::impl::gradient_edge(input_));
  variable_list found = run_backward({root_}, {output_gradient}, /*keep_graph=*/false, wanted);
  Gradients gradients;
  if (input_.requires_grad()) {
    gradients.input = found.back();
    found.pop_back();
  }
  gradients.weights = std::move(found);
  root_ = {};
  return gradients;
}

void Tape::find_groups() {
  // All nodes, who calls them (with which of their inputs), and how many ways lead on from them.
  std::unordered_map<Node*, std::vector<std::pair<NodePointer, uint32_t>>> callers;
  std::unordered_map<Node*, std::set<uint32_t>> inputs;
  std::unordered_map<Node*, int> ways;
  std::vector<NodePointer> all, todo{root_.function};
  std::unordered_set<Node*> seen{root_.function.get()};
  inputs[root_.function.get()].insert(root_.input_nr);
  while (!todo.empty()) {
    const NodePointer node = todo.back();
    todo.pop_back();
    all.push_back(node);
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      ++ways[node.get()];
      callers[edge.function.get()].emplace_back(node, edge.input_nr);
      inputs[edge.function.get()].insert(edge.input_nr);
      if (seen.insert(edge.function.get()).second) todo.push_back(edge.function);
    }
  }
  // From each parameter upwards, through nodes that lead nowhere else (a transposition), to the node of its layer. A parameter
  // that is used twice has no such node: its gradient is a sum, made by the input part.
  std::unordered_map<Node*, size_t> group_of;
  std::vector<std::vector<Node*>> passed;  // by group: the nodes on the way
  for (size_t i = 0; i < parameters_.size(); ++i) {
    NodePointer node = torch::autograd::impl::gradient_edge(parameters_[i]).function;
    if (!seen.contains(node.get())) continue;  // not used
    if (callers[node.get()].size() > 1) {
      early_.push_back(i);
      continue;
    }
    std::vector<Node*> way{node.get()};
    while (callers[node.get()].size() == 1) {
      node = callers[node.get()].front().first;
      way.push_back(node.get());
      if (ways[node.get()] > 1) break;
    }
    const auto [place, is_new] = group_of.emplace(node.get(), groups_.size());
    if (is_new) groups_.push_back({node, {inputs[node.get()].begin(), inputs[node.get()].end()}, {}, {}}), passed.emplace_back();
    groups_[place->second].parameters.push_back(i);
    passed[place->second].insert(passed[place->second].end(), way.begin(), way.end());
  }
  // A layer with vectors only is a normalisation: asking it twice would make its sums twice (resnet18: 8% of the whole backward).
  std::unordered_set<Node*> needed;
  std::vector<Group> later;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& mine = groups_[g].parameters;
    if (std::all_of(mine.begin(), mine.end(), [&](size_t i) { return parameters_[i].dim() <= 1; })) {
      early_.insert(early_.end(), mine.begin(), mine.end());
    } else {
      needed.insert(passed[g].begin(), passed[g].end());
      later.push_back(std::move(groups_[g]));
    }
  }
  groups_ = std::move(later);
  for (const NodePointer& node : all)
    if (!needed.contains(node.get())) unneeded_.push_back(node);
}

torch::Tensor Tape::backward_input(const torch::Tensor& output_gradient) {
  find_groups();
  edge_list wanted;
  for (const Group& group : groups_)
    for (uint32_t input : group.inputs) wanted.emplace_back(group.node, input);
  for (size_t i : early_) wanted.push_back(torch::autograd::impl::gradient_edge(parameters_[i]));
  if (input_.requires_grad()) wanted.push_back(torch::autograd::impl::gradient_edge(input_));
  const variable_list found = run_backward({root_}, {output_gradient}, /*keep_graph=*/true, wanted);
  size_t next = 0;
  for (Group& group : groups_)
    for (size_t i = 0; i < group.inputs.size(); ++i) group.captured.push_back(found[next++]);
  early_gradients_.assign(found.begin() + static_cast<long>(next), found.begin() + static_cast<long>(next + early_.size()));
  next += early_.size();
  const torch::Tensor input_gradient = input_.requires_grad() ? found[next] : torch::Tensor();
  // What softmax, GELU and their like kept for their own backward is of no more use: give it back before the weight part.
  for (const NodePointer& node : unneeded_) node->release_variables();
  unneeded_.clear();
  root_ = {};
  return input_gradient;
}

std::vector<torch::Tensor> Tape::backward_weight() {
  std::vector<torch::Tensor> weights(parameters_.size());
  for (size_t i = 0; i < early_.size(); ++i) weights[early_[i]] = std::move(early_gradients_[i]);
  for (Group& group : groups_) {
    edge_list roots, wanted;
    variable_list gradients;
    for (size_t i = 0; i < group.inputs.size(); ++i)
      if (group.captured[i].defined()) {
        roots.emplace_back(group.node, group.inputs[i]);
        gradients.push_back(group.captured[i]);
      }
    if (roots.empty()) continue;
    for (size_t i : group.parameters) wanted.push_back(torch::autograd::impl::gradient_edge(parameters_[i]));
    variable_list found = run_backward(roots, gradients, /*keep_graph=*/false, wanted);  // frees the layer's input on the way
    for (size_t i = 0; i < found.size(); ++i) weights[group.parameters[i]] = std::move(found[i]);
    group.captured.clear();
  }
  groups_.clear();
  return weights;
}

}  // namespace manyranks::pipeline
