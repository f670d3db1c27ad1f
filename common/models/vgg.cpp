// VGG-11 (Simonyan and Zisserman 2014): 132.9 M parameters, 123.6 M of them in three linear layers, against little arithmetic: the
// model whose gradients are hardest to hide. Units: each convolution, each linear layer.
#include <torch/nn.h>
#include "models/kinds.hpp"

namespace manyranks {
namespace {

class Vgg11 : public Model {
 public:
  explicit Vgg11(const ModelShape& shape) : Model("vgg11", shape) {
    auto features = register_module("features", std::make_shared<Names>());
    auto classifier = register_module("classifier", std::make_shared<Names>());
    int64_t in = shape.channels;
    int index = 0;  // torchvision's: activations and poolings count too
    for (const auto& [out, pool] : plan()) {
      const torch::nn::Conv2d conv(torch::nn::Conv2dOptions(in, out, 3).padding(1));
      auto unit = add_unit(std::make_shared<Chain>());
      const std::string name = std::to_string(index);
      unit->add("conv", features->register_module(name, conv)).then([](torch::Tensor x) { return x.relu_(); });
      if (pool) unit->then([](const torch::Tensor& x) { return torch::max_pool2d(x, 2, 2); });
      in = out;
      index += pool ? 3 : 2;
    }

    const int64_t hidden = 4096;
    const std::vector<std::pair<int64_t, int64_t>> sizes = {{512 * 7 * 7, hidden}, {hidden, hidden}, {hidden, shape.classes}};
    for (size_t i = 0; i < sizes.size(); ++i) {
      auto unit = add_unit(std::make_shared<Chain>());
      if (i == 0) unit->then([](const torch::Tensor& x) { return torch::adaptive_avg_pool2d(x, {7, 7}).flatten(1); });
      const torch::nn::Linear linear(sizes[i].first, sizes[i].second);
      unit->add("linear", classifier->register_module(std::to_string(3 * i), linear));
      if (i + 1 == sizes.size()) continue;
      unit->then([](torch::Tensor x) { return x.relu_(); });
      if (shape.dropout > 0) {
        const torch::nn::Dropout dropout(shape.dropout);
        unit->add("dropout", classifier->register_module(std::to_string(3 * i + 2), dropout));
      }
    }
    initialise();
  }

 private:
  struct Convolution {
    int64_t channels;
    bool pool;  // 2x2 behind it: (S, S) -> (S/2, S/2)
  };
  static std::vector<Convolution> plan() {
    return {{64, true}, {128, true}, {256, false}, {256, true}, {512, false}, {512, true}, {512, false}, {512, true}};
  }

  void initialise() {  // as torchvision
    torch::NoGradGuard no_grad;
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* conv = module->as<torch::nn::Conv2d>()) {
        torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
        torch::nn::init::zeros_(conv->bias);
      } else if (auto* linear = module->as<torch::nn::Linear>()) {
        torch::nn::init::normal_(linear->weight, 0, 0.01);
        torch::nn::init::zeros_(linear->bias);
      }
    }
  }
};

}  // namespace

std::shared_ptr<Model> make_vgg11(const ModelShape& shape) { return std::make_shared<Vgg11>(shape); }

}  // namespace manyranks
