// Published sizes, forward == composition of units, gradients that repeat, names that Python knows.
#include <gtest/gtest.h>
#include "launch/torch.hpp"

#include <set>

#include "launch/errors.hpp"
#include "models/flops.hpp"
#include "models/gelu.hpp"
#include "models/gpt.hpp"
#include "models/model.hpp"

namespace manyranks {
namespace {

// Small enough for a test, one of each kind.
ModelShape small_shape(const std::string& kind) {
  ModelShape shape = usual_shape(kind);
  if (kind == "resnet18" || kind == "resnet50") {
    shape.image = 32;
    shape.classes = 10;
  }
  if (kind == "gpt") {
    shape.layers = 2;
    shape.width = 32;
    shape.context = 16;
  }
  return shape;
}

const std::vector<std::string> quick_kinds = {"mlp", "convnet", "resnet18", "resnet50", "gpt"};  // vgg11 is 0.5 GB: see below

struct Gradients {
  torch::Tensor loss;
  std::vector<torch::Tensor> values;
};

Gradients gradients_from_seed(const std::string& kind) {
  torch::manual_seed(7);
  auto model = make_model(kind, small_shape(kind));
  const torch::Tensor loss = cross_entropy(model->forward(model->example_input(2)), model->example_target(2));
  loss.backward();
  Gradients result{loss.detach(), {}};
  for (const torch::Tensor& parameter : model->parameters()) result.values.push_back(parameter.grad());
  return result;
}

TEST(Models, CountsEqualThePublishedOnes) {
  EXPECT_EQ(parameter_count(*make_model("resnet18", usual_shape("resnet18"))), 11'689'512);
  EXPECT_EQ(parameter_count(*make_model("resnet50", usual_shape("resnet50"))), 25'557'032);
  EXPECT_EQ(parameter_count(*make_model("convnet", usual_shape("convnet"))), 421'642);
  ModelShape cifar = small_shape("resnet18");
  EXPECT_EQ(parameter_count(*make_model("resnet18", cifar)), 11'173'962);  // the usual CIFAR-10 variant
  ModelShape gpt2;
  gpt2.layers = 2;
  gpt2.width = 96;
  gpt2.vocab = 100;
  gpt2.context = 50;
  const int64_t c = gpt2.width, head = c * gpt2.vocab;
  const int64_t expected = c * (gpt2.vocab + gpt2.context) + gpt2.layers * (12 * c * c + 13 * c) + 2 * c + head;
  EXPECT_EQ(parameter_count(*make_model("gpt", gpt2)), expected);
  gpt2.tie_weights = true;
  EXPECT_EQ(parameter_count(*make_model("gpt", gpt2)), expected - head);
}

// Too large to train in a test: size, names and one forward pass.
TEST(Models, Vgg11) {
  torch::NoGradGuard no_grad;
  ModelShape shape = usual_shape("vgg11");
  shape.image = 64;  // the poolings in front of the linear layers make their size independent of it
  auto model = make_model("vgg11", shape);
  EXPECT_EQ(parameter_count(*model), 132'863'336);
  EXPECT_EQ(model->units().size(), 11U);
  EXPECT_TRUE(model->named_parameters().contains("features.18.weight"));
  EXPECT_TRUE(model->named_parameters().contains("classifier.6.bias"));
  const torch::Tensor x = model->example_input(1);
  torch::Tensor y = x;
  for (const auto& unit : model->units()) y = unit->forward(y);
  EXPECT_TRUE(torch::equal(y, model->forward(x)));
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{1, 1000}));
}

TEST(Models, UnitsComposeToForwardAndOwnEveryParameter) {
  for (const std::string& kind : quick_kinds) {
    torch::manual_seed(1);
    auto model = make_model(kind, small_shape(kind));
    model->eval();
    const torch::Tensor x = model->example_input(2);
    torch::Tensor y = x;
    for (const auto& unit : model->units()) y = unit->forward(y);
    EXPECT_TRUE(torch::equal(y, model->forward(x))) << kind;
    EXPECT_GT(model->units().size(), 1U) << kind;

    std::vector<const void*> of_units, of_model;
    for (const auto& unit : model->units()) {
      for (const auto& parameter : unit->parameters()) of_units.push_back(parameter.unsafeGetTensorImpl());
    }
    for (const auto& parameter : model->parameters()) of_model.push_back(parameter.unsafeGetTensorImpl());
    EXPECT_EQ(of_units, of_model) << kind << ": the same tensors in the same order";
    size_t buffers = 0;
    for (const auto& unit : model->units()) buffers += unit->buffers().size();
    EXPECT_EQ(buffers, model->buffers().size()) << kind;
  }
}

TEST(Models, ModeAndTypeReachEveryUnit) {
  for (const std::string& kind : quick_kinds) {
    auto model = make_model(kind, small_shape(kind));
    model->eval();
    model->to(torch::kDouble);
    for (const auto& unit : model->units()) {
      for (const auto& layer : unit->modules(/*include_self=*/false)) EXPECT_FALSE(layer->is_training()) << kind;
      for (const auto& parameter : unit->parameters()) EXPECT_EQ(parameter.dtype(), torch::kDouble) << kind;
    }
  }
}

TEST(Models, SeedGivesWeightsAndGradientsAgain) {
  for (const std::string& kind : quick_kinds) {
    const Gradients first = gradients_from_seed(kind), second = gradients_from_seed(kind);
    EXPECT_TRUE(torch::equal(first.loss, second.loss)) << kind;
    EXPECT_TRUE(first.loss.isfinite().item<bool>()) << kind;
    for (size_t i = 0; i < first.values.size(); ++i) {
      ASSERT_TRUE(first.values[i].defined()) << kind << ": parameter " << i << " takes no part";
      EXPECT_TRUE(torch::equal(first.values[i], second.values[i])) << kind << ", parameter " << i;
    }
  }
}

TEST(Models, InitialisationFollowsTheCustom) {
  torch::manual_seed(3);
  auto resnet = make_model("resnet18", usual_shape("resnet18"));
  const auto named = resnet->named_parameters();
  EXPECT_NEAR(named["layer4.1.conv2.weight"].std().item<double>(), std::sqrt(2.0 / (512 * 9)), 1e-4);  // kaiming, fan out
  EXPECT_EQ(named["layer2.0.downsample.1.weight"].min().item<float>(), 1.0F);
  EXPECT_LE(named["fc.weight"].abs().max().item<double>(), 1.0 / std::sqrt(512.0));  // torch's default for a linear layer

  ModelShape shape = usual_shape("gpt");
  const auto gpt = make_model("gpt", shape)->named_parameters();
  EXPECT_NEAR(gpt["h.0.mlp.c_fc.weight"].std().item<double>(), 0.02, 1e-3);
  EXPECT_NEAR(gpt["h.3.mlp.c_proj.weight"].std().item<double>(), 0.02 / std::sqrt(8.0), 5e-4);
  EXPECT_EQ(gpt["h.1.attn.c_attn.bias"].abs().max().item<float>(), 0.0F);
  EXPECT_EQ(gpt["ln_f.weight"].min().item<float>(), 1.0F);
}

// Values, gradients and gradients of gradients are LibTorch's; what is not a row of floats is taken too.
TEST(Gpt, GeluIsLibTorchs) {
  for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
    const auto x = torch::randn({33, 70}, dtype).t().mul_(3).requires_grad_(), theirs = x.detach().clone().requires_grad_();
    const auto weight = torch::randn({70, 33}, dtype);
    const auto y = gelu_tanh(x), z = torch::gelu(theirs, "tanh");
    EXPECT_TRUE(torch::allclose(y, z, 1e-5, 1e-6));
    (y * weight).sum().backward();
    (z * weight).sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), theirs.grad(), 1e-5, 5e-6));
    const auto twice = [&](const torch::Tensor& at, const torch::Tensor& out) {
      const auto slope = torch::autograd::grad({out.sum()}, {at}, {}, std::nullopt, /*create_graph=*/true)[0];
      return torch::autograd::grad({(slope * weight).sum()}, {at})[0];
    };
    EXPECT_TRUE(torch::allclose(twice(x, gelu_tanh(x)), twice(theirs, torch::gelu(theirs, "tanh")), 1e-4, 1e-5));
  }
}

TEST(Gpt, ShapesAndCausality) {
  torch::manual_seed(2);
  const ModelShape shape = small_shape("gpt");
  auto model = make_model("gpt", shape);
  const torch::Tensor tokens = model->example_input(3);
  const torch::Tensor logits = model->forward(tokens);
  EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{3, shape.context, shape.vocab}));
  EXPECT_EQ(model->forward(tokens.slice(1, 0, 5)).sizes(), (std::vector<int64_t>{3, 5, shape.vocab}));
  EXPECT_NEAR(cross_entropy(logits, tokens).item<double>(), std::log(256.0), 0.2);  // knows nothing yet

  torch::Tensor changed = tokens.clone();
  changed.select(1, 10).fill_(0);
  changed.select(1, 10).sub_(tokens.select(1, 10).eq(0).to(torch::kLong), -1);  // certainly another token
  const torch::Tensor other = model->forward(changed);
  EXPECT_TRUE(torch::equal(other.slice(1, 0, 10), logits.slice(1, 0, 10))) << "the past must not see the future";
  EXPECT_FALSE(torch::equal(other.slice(1, 10), logits.slice(1, 10)));
  EXPECT_THROW(model->forward(torch::zeros({1, shape.context + 1}, torch::kLong)), Error);
}

TEST(Gpt, DropoutOnlyWhileTraining) {
  ModelShape shape = small_shape("gpt");
  shape.dropout = 0.3;
  auto model = make_model("gpt", shape);
  const torch::Tensor tokens = model->example_input(2);
  EXPECT_FALSE(torch::equal(model->forward(tokens), model->forward(tokens)));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(tokens), model->forward(tokens)));
}

TEST(Gpt, TiedWeightsAreOneTensorInTwoUnits) {
  ModelShape shape = small_shape("gpt");
  shape.tie_weights = true;
  auto model = make_model("gpt", shape);
  EXPECT_EQ(model->units().front()->named_parameters()["wte.weight"].unsafeGetTensorImpl(),
            model->units().back()->named_parameters()["wte.weight"].unsafeGetTensorImpl());
  cross_entropy(model->forward(model->example_input(2)), model->example_target(2)).backward();
  EXPECT_TRUE(model->named_parameters()["wte.weight"].grad().defined());
}

// Counted on the way against counted by hand.
TEST(Flops, EqualTheFormulas) {
  ModelShape linear = usual_shape("mlp");
  linear.layers = 1;
  auto mlp = make_model("mlp", linear);
  EXPECT_EQ(forward_flops(*mlp, mlp->example_input(5)), 2.0 * 5 * (784 * 128 + 128 * 10));
  EXPECT_EQ(train_flops_per_sample(*mlp), 6.0 * (784 * 128 + 128 * 10));

  auto convnet = make_model("convnet", usual_shape("convnet"));
  const double products = 784.0 * 32 * 9 + 196.0 * 64 * 32 * 9 + 3136.0 * 128 + 128.0 * 10;
  EXPECT_EQ(forward_flops(*convnet, convnet->example_input(1)), 2 * products);

  // 1.814 and 4.089 G multiply-adds are the figures that torchvision publishes.
  auto resnet18 = make_model("resnet18", usual_shape("resnet18"));
  EXPECT_NEAR(train_flops_per_sample(*resnet18) / 6e9, 1.814, 1e-3);
  auto resnet50 = make_model("resnet50", usual_shape("resnet50"));
  EXPECT_NEAR(train_flops_per_sample(*resnet50) / 6e9, 4.089, 1e-3);
  EXPECT_TRUE(resnet50->is_training()) << "counting leaves the mode alone";

  const ModelShape shape = small_shape("gpt");
  auto gpt = make_model("gpt", shape);
  const double c = 32, t = 16, layers = 2, vocab = 256;
  const double weights = layers * 12 * c * c + c * vocab;
  EXPECT_EQ(forward_flops(*gpt, gpt->example_input(1)), 2 * weights * t + layers * 4 * c * t * t);
  const double vectors = layers * 13 * c + 2 * c;  // biases and norms are in N, by custom
  EXPECT_EQ(gpt_train_flops_per_token(*gpt), 6 * (weights + vectors) + 6 * layers * c * t);
}

TEST(Models, RefusesWhatCannotBe) {
  EXPECT_THROW(make_model("resnet19", ModelShape{}), Error);
  ModelShape odd = usual_shape("gpt");
  odd.heads = 3;
  EXPECT_THROW(make_model("gpt", odd), Error);
  ModelShape tiny = usual_shape("vgg11");
  tiny.image = 16;
  EXPECT_THROW(make_model("vgg11", tiny), Error);
}

}  // namespace
}  // namespace manyranks
