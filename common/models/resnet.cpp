// ResNet-18 and -50 (He et al. 2015; the stride of a bottleneck on its 3x3 convolution, as torchvision has it). Units: stem, each
// residual block, head. Layers are made and initialised in torchvision's order, so one seed gives the same weights there.
#include <torch/nn.h>
#include "models/batch_norm.hpp"  // BatchNorm
#include "models/kinds.hpp"

namespace manyranks {
namespace {

using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return Conv2d(Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// The way around the block where channels or resolution change: (N, in, S, S) -> (N, out, S/stride, S/stride).
torch::nn::Sequential shortcut(int64_t in, int64_t out, int64_t stride) {
  if (in == out && stride == 1) return nullptr;
  return torch::nn::Sequential(convolution(in, out, 1, stride), BatchNorm(out));
}

class BasicBlock : public Unit {
 public:
  static constexpr int64_t expansion = 1;

  BasicBlock(int64_t in, int64_t planes, int64_t stride) {
    downsample_ = shortcut(in, planes, stride);
    conv1_ = register_module("conv1", convolution(in, planes, 3, stride));
    bn1_ = register_module("bn1", BatchNorm(planes));
    conv2_ = register_module("conv2", convolution(planes, planes, 3, 1));
    bn2_ = register_module("bn2", BatchNorm(planes));
    if (downsample_) register_module("downsample", downsample_);
  }

  torch::Tensor forward(torch::Tensor x) override {
    torch::Tensor y = bn1_(conv1_(x)).relu_();
    y = bn2_(conv2_(y));
    y += downsample_ ? downsample_->forward(x) : x;
    return y.relu_();
  }

 private:
  Conv2d conv1_{nullptr}, conv2_{nullptr};
  BatchNorm bn1_{nullptr}, bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};
};

class Bottleneck : public Unit {
 public:
  static constexpr int64_t expansion = 4;

  Bottleneck(int64_t in, int64_t planes, int64_t stride) {
    downsample_ = shortcut(in, planes * expansion, stride);
    conv1_ = register_module("conv1", convolution(in, planes, 1, 1));
    bn1_ = register_module("bn1", BatchNorm(planes));
    conv2_ = register_module("conv2", convolution(planes, planes, 3, stride));
    bn2_ = register_module("bn2", BatchNorm(planes));
    conv3_ = register_module("conv3", convolution(planes, planes * expansion, 1, 1));
    bn3_ = register_module("bn3", BatchNorm(planes * expansion));
    if (downsample_) register_module("downsample", downsample_);
  }

  torch::Tensor forward(torch::Tensor x) override {
    torch::Tensor y = bn1_(conv1_(x)).relu_();
    y = bn2_(conv2_(y)).relu_();
    y = bn3_(conv3_(y));
    y += downsample_ ? downsample_->forward(x) : x;
    return y.relu_();
  }

 private:
  Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  BatchNorm bn1_{nullptr}, bn2_{nullptr}, bn3_{nullptr};
  torch::nn::Sequential downsample_{nullptr};
};

class Resnet : public Model {
 public:
  Resnet(const std::string& kind, const ModelShape& shape) : Model(kind, shape) {
    add_stem();
    if (kind == "resnet18") {
      add_layers<BasicBlock>({2, 2, 2, 2});
    } else {
      add_layers<Bottleneck>({3, 4, 6, 3});
    }
    add_unit(std::make_shared<Chain>())
        ->then([](const torch::Tensor& x) { return torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1); })
        .add("fc", register_module("fc", torch::nn::Linear(channels_, shape.classes)));

    torch::NoGradGuard no_grad;
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* conv = module->as<torch::nn::Conv2d>()) {
        torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }

 private:
  // ImageNet: (N, 3, 224, 224) -> (N, 64, 56, 56). CIFAR: (N, 3, 32, 32) -> (N, 64, 32, 32).
  void add_stem() {
    const bool small = shape().image <= 64;
    const Conv2d conv1 = small ? convolution(shape().channels, 64, 3, 1) : convolution(shape().channels, 64, 7, 2);
    auto stem = add_unit(std::make_shared<Chain>());
    stem->add("conv1", register_module("conv1", conv1)).add("bn1", register_module("bn1", BatchNorm(64)));
    stem->then([](torch::Tensor x) { return x.relu_(); });
    if (!small) stem->then([](const torch::Tensor& x) { return torch::max_pool2d(x, 3, 2, 1); });
  }

  template <class Block>
  void add_layers(const std::vector<int>& depths) {
    for (size_t layer = 0; layer < depths.size(); ++layer) {
      auto names = register_module("layer" + std::to_string(layer + 1), std::make_shared<Names>());
      const int64_t planes = int64_t{64} << layer;
      for (int i = 0; i < depths[layer]; ++i) {
        const int64_t stride = layer > 0 && i == 0 ? 2 : 1;
        names->register_module(std::to_string(i), add_unit(std::make_shared<Block>(channels_, planes, stride)));
        channels_ = planes * Block::expansion;
      }
    }
  }

  int64_t channels_ = 64;
};

}  // namespace

std::shared_ptr<Model> make_resnet(const std::string& kind, const ModelShape& shape) {
  return std::make_shared<Resnet>(kind, shape);
}

}  // namespace manyranks
