#include <torch/nn.h>
#include "models/model.hpp"

#include <unordered_set>

#include "launch/errors.hpp"
#include "models/kinds.hpp"

namespace manyranks {
namespace {

void require(bool good, const std::string& kind, const std::string& cause) {
  if (!good) throw usage_error("model " + kind, cause);
}

void check_shape(const std::string& kind, const ModelShape& s) {
  if (kind == "gpt") {
    require(s.width > 0 && s.heads > 0 && s.width % s.heads == 0, kind, "width must be a multiple of heads");
    require(s.layers > 0 && s.vocab > 0 && s.context > 0, kind, "layers, vocab and context must be positive");
  } else {
    require(s.classes > 0 && s.channels > 0 && s.image > 0 && s.width > 0, kind, "classes, channels, image and width must be positive");
    require(s.layers >= 0, kind, "layers must not be negative");
    require(kind != "convnet" || s.image >= 4, kind, "an image needs at least 4 pixels a side");
    require(kind != "vgg11" || s.image >= 32, kind, "an image needs at least 32 pixels a side: five poolings halve it");
  }
  require(s.dropout >= 0.0 && s.dropout < 1.0, kind, "dropout must be in [0, 1)");
}

}  // namespace

std::vector<std::string> model_kinds() { return {"mlp", "convnet", "resnet18", "resnet50", "vgg11", "gpt"}; }

ModelShape usual_shape(const std::string& kind) {
  ModelShape shape;
  if (kind == "convnet") shape.width = 32;
  if (kind == "resnet18" || kind == "resnet50" || kind == "vgg11") {
    shape.classes = 1000;
    shape.channels = 3;
    shape.image = 224;
  }
  if (kind == "gpt") shape.layers = 4;
  return shape;
}

std::shared_ptr<Model> make_model(const std::string& kind, const ModelShape& shape) {
  check_shape(kind, shape);
  if (kind == "mlp") return make_mlp(shape);
  if (kind == "convnet") return make_convnet(shape);
  if (kind == "resnet18" || kind == "resnet50") return make_resnet(kind, shape);
  if (kind == "vgg11") return make_vgg11(shape);
  if (kind == "gpt") return make_gpt(shape);
  std::string known;
  for (const std::string& name : model_kinds()) known += (known.empty() ? "" : ", ") + name;
  throw usage_error("model", "there is no model '" + kind + "'", "one of: " + known);
}

torch::Tensor Model::example_input(int64_t batch) const {
  if (is_language()) return torch::randint(shape_.vocab, {batch, shape_.context}, torch::kLong);
  return torch::randn({batch, shape_.channels, shape_.image, shape_.image});
}

torch::Tensor Model::example_target(int64_t batch) const {
  if (is_language()) return torch::randint(shape_.vocab, {batch, shape_.context}, torch::kLong);
  return torch::randint(shape_.classes, {batch}, torch::kLong);
}

torch::Tensor cross_entropy(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(output.reshape({-1, output.size(-1)}), target.reshape({-1}));
}

int64_t parameter_count(const torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  int64_t count = 0;
  for (const torch::Tensor& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) count += parameter.numel();
  }
  return count;
}

}  // namespace manyranks
