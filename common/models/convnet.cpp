// Two convolutions and two linear layers: enough for 28x28 digits. At the usual shape 421,642 parameters.
#include <torch/nn.h>
#include "models/kinds.hpp"

namespace manyranks {
namespace {

class Convnet : public Model {
 public:
  explicit Convnet(const ModelShape& shape) : Model("convnet", shape) {
    const int64_t hidden = 128, side = shape.image / 2 / 2;  // two poolings, each rounding down
    add_convolution("conv1", shape.channels, shape.width);
    add_convolution("conv2", shape.width, 2 * shape.width);

    const torch::nn::Linear fc1(2 * shape.width * side * side, hidden), fc2(hidden, shape.classes);
    add_unit(std::make_shared<Chain>())
        ->then([](const torch::Tensor& x) { return x.flatten(1); })
        .add("fc1", register_module("fc1", fc1))
        .then([](const torch::Tensor& x) { return torch::relu(x); });
    add_unit(std::make_shared<Chain>())->add("fc2", register_module("fc2", fc2));
  }

 private:
  // (N, in, S, S) -> (N, out, S/2, S/2)
  void add_convolution(const std::string& name, int64_t in, int64_t out) {
    const torch::nn::Conv2d conv(torch::nn::Conv2dOptions(in, out, 3).padding(1));
    add_unit(std::make_shared<Chain>())
        ->add(name, register_module(name, conv))
        .then([](const torch::Tensor& x) { return torch::max_pool2d(torch::relu(x), 2); });
  }
};

}  // namespace

std::shared_ptr<Model> make_convnet(const ModelShape& shape) { return std::make_shared<Convnet>(shape); }

}  // namespace manyranks
