// One maker per kind, for make_model(). A name for nested layers as Python spells it ("layer1.0") is a tree of these.
#pragma once

#include "models/model.hpp"

namespace manyranks {

// A node in the tree of names, with no forward pass of its own.
class Names : public torch::nn::Module {
 public:
  using torch::nn::Module::register_module;
};

std::shared_ptr<Model> make_mlp(const ModelShape& shape);
std::shared_ptr<Model> make_convnet(const ModelShape& shape);
std::shared_ptr<Model> make_resnet(const std::string& kind, const ModelShape& shape);
std::shared_ptr<Model> make_vgg11(const ModelShape& shape);
std::shared_ptr<Model> make_gpt(const ModelShape& shape);

}  // namespace manyranks
