// The smallest model, and with no hidden layer a linear one. A unit is a layer with its activation.
#include <torch/nn.h>
#include "models/kinds.hpp"

namespace manyranks {
namespace {

class Mlp : public Model {
 public:
  explicit Mlp(const ModelShape& shape) : Model("mlp", shape) {
    int64_t in = shape.channels * shape.image * shape.image;
    for (int64_t i = 0; i <= shape.layers; ++i) {
      const bool last = i == shape.layers;
      const std::string name = "fc" + std::to_string(i + 1);
      const torch::nn::Linear linear(in, last ? shape.classes : shape.width);
      auto unit = add_unit(std::make_shared<Chain>());
      if (i == 0) unit->then([](const torch::Tensor& x) { return x.flatten(1); });
      unit->add(name, register_module(name, linear));
      if (!last) unit->then([](const torch::Tensor& x) { return torch::relu(x); });
      in = shape.width;
    }
  }
};

}  // namespace

std::shared_ptr<Model> make_mlp(const ModelShape& shape) { return std::make_shared<Mlp>(shape); }

}  // namespace manyranks
