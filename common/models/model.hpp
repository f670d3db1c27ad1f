// A model is an ordered list of units, and its forward pass is exactly their composition: pipeline stages, ZeRO-3, recomputation
// and the layer split all cut between units.
//
//   auto model = make_model("resnet18", usual_shape("resnet18"));
//   torch::Tensor y = x;
//   for (auto& unit : model->units()) y = unit->forward(y);   // the same bits as model->forward(x)
//
// Parameters carry the names that torchvision (resnet, vgg) and GPT-2 give them, in their order, so that a safetensors file
// from Python fits. For that the model registers the layers under those names, and each unit registers its own layers a
// second time: model->parameters() and all units' parameters() are the same tensors.
#pragma once

#include "launch/torch.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace manyranks {

class Unit : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};

// A unit that runs layers and plain functions one after another.
class Chain : public Unit {
 public:
  using Function = std::function<torch::Tensor(const torch::Tensor&)>;

  // A layer with state: registered under `name`.
  template <class Layer>
  Chain& add(const std::string& name, Layer layer) {
    register_module(name, layer);
    return then([layer](const torch::Tensor& x) mutable { return layer->forward(x); });
  }
  Chain& then(Function function) {
    steps_.push_back(std::move(function));
    return *this;
  }
  torch::Tensor forward(torch::Tensor x) override {
    for (const Function& step : steps_) x = step(x);
    return x;
  }

 private:
  std::vector<Function> steps_;
};

struct ModelShape {
  int64_t classes = 10;
  int64_t channels = 1, image = 28;  // input (N, channels, image, image)
  int64_t width = 128;               // mlp: hidden units; convnet: first channels; gpt: embedding (C)
  int64_t layers = 2;                // mlp: hidden layers, 0 is a linear model; gpt: blocks
  int64_t heads = 4;                 // gpt
  int64_t vocab = 256;               // gpt
  int64_t context = 128;             // gpt: longest sequence (T)
  double dropout = 0.0;              // gpt, vgg11; off, so that a distributed run can be compared bit by bit with a serial one
  bool tie_weights = false;          // gpt: the embedding is also the output layer, which then joins the first and last unit
};

class Model : public torch::nn::Module {
 public:
  const std::string& kind() const { return kind_; }
  const ModelShape& shape() const { return shape_; }
  const std::vector<std::shared_ptr<Unit>>& units() const { return units_; }
  torch::Tensor forward(torch::Tensor x) {
    for (const std::shared_ptr<Unit>& unit : units_) x = unit->forward(x);
    return x;
  }

  // Random input and target of the right shape and type, for benchmarks and checks.
  // Images: (N, channels, image, image) and (N); gpt: tokens (N, context) and (N, context).
  torch::Tensor example_input(int64_t batch) const;
  torch::Tensor example_target(int64_t batch) const;
  bool is_language() const { return kind_ == "gpt"; }

 protected:
  Model(std::string kind, const ModelShape& shape) : kind_(std::move(kind)), shape_(shape) {}
  template <class U>
  std::shared_ptr<U> add_unit(std::shared_ptr<U> unit) {
    units_.push_back(unit);
    return unit;
  }

 private:
  std::string kind_;
  ModelShape shape_;
  std::vector<std::shared_ptr<Unit>> units_;
};

// mlp | convnet | resnet18 | resnet50 | vgg11 | gpt. Weights follow torch::manual_seed. Images up to 64 pixels give a resnet the
// CIFAR stem (3x3, no pooling). Throws a usage error for an unknown name or a shape that cannot be.
std::shared_ptr<Model> make_model(const std::string& kind, const ModelShape& shape);
std::vector<std::string> model_kinds();

// What is usual for a kind: mlp and convnet 28x28 digits, resnet and vgg 224x224 and 1000 classes, gpt 4 blocks of 128.
ModelShape usual_shape(const std::string& kind);

// Mean cross-entropy of (N, classes) with (N), or of (N, T, vocab) with (N, T).
torch::Tensor cross_entropy(const torch::Tensor& output, const torch::Tensor& target);

int64_t parameter_count(const torch::nn::Module& module);  // each tensor once, also if it is tied

}  // namespace manyranks
