// Split backward: the same bits as the whole one, and no layer's input gradient twice.
#include <torch/nn.h>
#include <gtest/gtest.h>

#include "measure/verify.hpp"
#include "models/flops.hpp"  // count_flops
#include "models/model.hpp"
#include "tape.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;

struct Case {
  std::string kind;
  ModelShape shape;
};

static std::vector<Case> cases() {
  ModelShape mlp, convnet = usual_shape("convnet"), resnet = usual_shape("resnet18"), gpt = usual_shape("gpt");
  mlp.image = 8, mlp.width = 16;
  convnet.width = 4, convnet.image = 8;
  resnet.image = 16, resnet.classes = 10;
  gpt.layers = 2, gpt.width = 16, gpt.context = 8, gpt.vocab = 32;
  ModelShape tied = gpt;
  tied.tie_weights = true;
  return {{"mlp", mlp}, {"convnet", convnet}, {"resnet18", resnet}, {"gpt", gpt}, {"gpt", tied}};
}

TEST(Tape, the_two_parts_give_the_bits_of_the_whole) {
  for (const Case& c : cases()) {
    torch::manual_seed(1);
    const auto model = make_model(c.kind, c.shape);
    const auto input = model->example_input(2), target = model->example_target(2);
    for (bool input_needs_gradient : {false, true}) {
      if (input_needs_gradient && c.kind == "gpt") continue;  // tokens have none
      const auto run = [&] {
        const auto x = input.detach().requires_grad_(input_needs_gradient);
        return Tape(x, cross_entropy(model->forward(x), target), model->parameters());
      };
      const auto one = torch::ones({});
      const Tape::Gradients whole = run().backward(one);
      Tape split = run();
      const auto input_gradient = split.backward_input(one);
      const auto weights = split.backward_weight();
      ASSERT_EQ(input_gradient.defined(), input_needs_gradient);
      if (input_needs_gradient) expect_equal_bits("input", input_gradient, whole.input);
      ASSERT_EQ(weights.size(), whole.weights.size());
      for (size_t i = 0; i < weights.size(); ++i) ASSERT_TRUE(weights[i].defined()) << c.kind << " " << i;
      expect_equal_bits(c.kind, weights, whole.weights);
    }
  }
}

TEST(Tape, an_unused_parameter_has_no_gradient) {
  const auto used = torch::ones({2, 2}, torch::requires_grad()), unused = torch::ones({2}, torch::requires_grad());
  const auto x = torch::ones({2, 2}, torch::requires_grad());
  Tape tape(x, torch::mm(x, used).sum(), {used, unused});
  EXPECT_TRUE(tape.backward_input(torch::ones({})).defined());
  const auto weights = tape.backward_weight();
  EXPECT_TRUE(weights[0].defined());
  EXPECT_FALSE(weights[1].defined());
}

TEST(Tape, the_weight_part_repeats_nothing) {
  // 6 linear layers, (4, 8) x (8, 8) each: 6 products for the inputs' gradients, 6 for the weights', however they are split.
  const double product = 2.0 * 4 * 8 * 8;
  torch::nn::Sequential layers;
  for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(8, 8));
  const auto run = [&] {
    const auto x = torch::ones({4, 8}, torch::requires_grad());
    return Tape(x, layers->forward(x), layers->parameters());
  };
  Tape whole = run(), split = run();
  const auto gradient = torch::ones({4, 8});
  EXPECT_EQ(count_flops([&] { whole.backward(gradient); }), 12 * product);
  EXPECT_EQ(count_flops([&] { split.backward_input(gradient); }), 6 * product);
  EXPECT_EQ(count_flops([&] { split.backward_weight(); }), 6 * product);
}
