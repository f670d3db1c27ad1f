// Flat buffers, fused optimisers against torch::optim, and training that goes on from a checkpoint with the same bits.
#include <torch/optim.h>
#include <gtest/gtest.h>
#include "launch/torch.hpp"

#include <cstring>
#include <filesystem>

#include "launch/errors.hpp"
#include "models/model.hpp"
#include "train/checkpoint.hpp"
#include "train/flat_parameters.hpp"
#include "train/fused.hpp"
#include "train/optimizer.hpp"

namespace manyranks {
namespace {

ModelShape small(const std::string& kind) {
  ModelShape shape = usual_shape(kind);
  if (kind == "resnet18") shape.image = 32;
  if (kind == "gpt") {
    shape.layers = 1;
    shape.width = 32;
    shape.context = 8;
  }
  return shape;
}

void backward(Model& model, int64_t batch = 2) {
  cross_entropy(model.forward(model.example_input(batch)), model.example_target(batch)).backward();
}

double relative_distance(const torch::Tensor& a, const torch::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

TEST(FlatParameters, ParametersAndGradientsAreViews) {
  torch::manual_seed(1);
  auto model = make_model("convnet", small("convnet"));
  std::vector<torch::Tensor> before;
  for (const auto& parameter : model->parameters()) before.push_back(parameter.detach().clone());

  FlatParameters flat(*model, 64);
  EXPECT_EQ(flat.count(), parameter_count(*model));
  EXPECT_EQ(flat.parameters().numel() % 64, 0);
  EXPECT_EQ(flat.slots().size(), before.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(flat.slots()[i].parameter, before[i]));

  backward(*model);
  flat.check_views();
  const torch::Tensor once = flat.gradients().clone();
  EXPECT_GT(once.norm().item<double>(), 0);
  const auto& last = flat.slots().back();
  EXPECT_TRUE(torch::equal(flat.gradients().narrow(0, last.begin, last.count), last.parameter.grad().flatten()));
  flat.parameters().zero_();
  EXPECT_EQ(model->parameters()[0].abs().sum().item<float>(), 0.0F);
  flat.zero_grad();
  EXPECT_EQ(flat.gradients().abs().sum().item<float>(), 0.0F);
  flat.check_views();
}

TEST(FlatParameters, SameGradientsAsWithout) {
  for (const std::string kind : {"convnet", "resnet18", "gpt"}) {
    torch::manual_seed(5);
    auto plain = make_model(kind, small(kind));
    backward(*plain);
    torch::manual_seed(5);
    auto model = make_model(kind, small(kind));
    FlatParameters flat(*model);
    backward(*model);
    for (size_t i = 0; i < flat.slots().size(); ++i) {
      EXPECT_TRUE(torch::equal(flat.slots()[i].parameter.grad(), plain->parameters()[i].grad())) << kind << " " << flat.slots()[i].name;
    }
  }
}

TEST(FlatParameters, NoticesLostViews) {
  auto model = make_model("mlp", small("mlp"));
  FlatParameters flat(*model);
  model->zero_grad();  // set_to_none
  EXPECT_THROW(flat.zero_grad(), Error);
  auto moved = make_model("mlp", small("mlp"));
  FlatParameters other(*moved);
  moved->to(torch::kDouble);
  EXPECT_THROW(other.check_views(), Error);
}

TEST(FlatParameters, KeepsLayoutAndTies) {
  auto model = make_model("convnet", small("convnet"));
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  const torch::Tensor before = model->named_parameters()["conv2.weight"].detach().clone();
  FlatParameters flat(*model);
  const torch::Tensor after = model->named_parameters()["conv2.weight"];
  EXPECT_TRUE(after.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(torch::equal(after, before));

  ModelShape tied = small("gpt");
  tied.tie_weights = true;
  auto gpt = make_model("gpt", tied);
  EXPECT_EQ(FlatParameters(*gpt).count(), parameter_count(*gpt));
}

TEST(FlatParameters, UsesTheMemoryItIsGiven) {
  auto model = make_model("mlp", small("mlp"));
  std::vector<torch::Tensor> given;
  FlatParameters flat(*model, 1, [&](int64_t count, const char*) { return given.emplace_back(torch::empty({count})); });
  ASSERT_EQ(given.size(), 2U);
  EXPECT_EQ(flat.parameters().data_ptr(), given[0].data_ptr());
  EXPECT_EQ(flat.gradients().data_ptr(), given[1].data_ptr());
}

// 20 steps on gradients that are the same for both sides, so that only the optimiser can differ.
template <class MakeOurs, class TheirOptimizer>
void compare_with_torch(const MakeOurs& make_ours, const std::function<TheirOptimizer(std::vector<torch::Tensor>)>& make_theirs) {
  torch::manual_seed(11);
  const torch::Tensor start = torch::randn({5000});
  torch::Tensor ours = start.clone(), gradient = torch::zeros({5000});
  torch::Tensor theirs = start.clone().requires_grad_();
  auto our_optimizer = make_ours(ours, gradient);
  TheirOptimizer their_optimizer = make_theirs({theirs});
  for (int step = 0; step < 20; ++step) {
    gradient.normal_();
    theirs.mutable_grad() = gradient.clone();
    our_optimizer->step(0.01);
    their_optimizer.step();
  }
  EXPECT_GT(relative_distance(ours, start), 1e-2) << "nothing moved";
  EXPECT_LT(relative_distance(ours, theirs.detach()), 1e-6);
}

TEST(Optimizer, SgdAsTorch) {
  for (const double decay : {0.0, 1e-2}) {
    compare_with_torch<std::function<std::unique_ptr<Optimizer>(torch::Tensor, torch::Tensor)>, torch::optim::SGD>(
        [&](torch::Tensor p, torch::Tensor g) { return std::make_unique<Sgd>(p, g, SgdOptions{0.9, decay}); },
        [&](std::vector<torch::Tensor> p) {
          return torch::optim::SGD(std::move(p), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(decay));
        });
  }
}

TEST(Optimizer, AdamAsTorch) {
  for (const double decay : {0.0, 1e-2}) {
    compare_with_torch<std::function<std::unique_ptr<Optimizer>(torch::Tensor, torch::Tensor)>, torch::optim::Adam>(
        [&](torch::Tensor p, torch::Tensor g) { return std::make_unique<Adam>(p, g, AdamOptions{.weight_decay = decay}); },
        [&](std::vector<torch::Tensor> p) { return torch::optim::Adam(std::move(p), torch::optim::AdamOptions(0.01).weight_decay(decay)); });
  }
}

TEST(Optimizer, AdamWAsTorch) {
  compare_with_torch<std::function<std::unique_ptr<Optimizer>(torch::Tensor, torch::Tensor)>, torch::optim::AdamW>(
      [&](torch::Tensor p, torch::Tensor g) {
        return std::make_unique<Adam>(p, g, AdamOptions{.weight_decay = 0.1, .decoupled = true});
      },
      [&](std::vector<torch::Tensor> p) { return torch::optim::AdamW(std::move(p), torch::optim::AdamWOptions(0.01).weight_decay(0.1)); });
}

TEST(Optimizer, ShardsGiveTheSameBits) {
  torch::manual_seed(4);
  const int64_t count = 200'003;  // over the grain of one thread
  const torch::Tensor start = torch::randn({count}), gradient = torch::randn({count});
  torch::Tensor whole = start.clone();
  Adam serial(whole, gradient, {.weight_decay = 0.01});
  for (int step = 0; step < 3; ++step) serial.step(1e-3, 0.5);
  for (const int ranks : {2, 3, 7}) {
    torch::Tensor sharded = start.clone();
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t begin = count * rank / ranks, n = count * (rank + 1) / ranks - begin;
      Adam mine(sharded.narrow(0, begin, n), gradient.narrow(0, begin, n), {.weight_decay = 0.01});
      EXPECT_EQ(mine.state()[0].second.numel(), n);
      for (int step = 0; step < 3; ++step) mine.step(1e-3, 0.5);
    }
    EXPECT_TRUE(torch::equal(sharded, whole)) << ranks << " ranks";
  }
}

TEST(Fused, RefusesBuffersThatDoNotFit) {
  const torch::Tensor a = torch::zeros({4}), b = torch::zeros({5});
  EXPECT_THROW(fused_sgd({}, a, b, a), Error);
  EXPECT_THROW(fused_sgd({}, a, a.to(torch::kDouble), a), Error);
  EXPECT_THROW(fused_sgd({}, a, torch::zeros({4, 2}).select(1, 0), a), Error);
  EXPECT_THROW(sum_of_squares(torch::empty({4}, torch::kMeta)), Error);
}

TEST(Fused, NormAndScaleDoNotDependOnThreads) {
  torch::manual_seed(9);
  const torch::Tensor values = torch::randn({1'000'001});
  const int threads = torch::get_num_threads();
  torch::set_num_threads(1);
  const double one = sum_of_squares(values);
  torch::set_num_threads(3);
  EXPECT_EQ(sum_of_squares(values), one);
  EXPECT_NEAR(one, values.to(torch::kDouble).square().sum().item<double>(), 1e-6);
  torch::Tensor scaled = values.clone();
  EXPECT_TRUE(scale_and_check(scaled, 0.5));
  EXPECT_TRUE(torch::equal(scaled, values * 0.5));
  scaled[999'999] = INFINITY;
  EXPECT_FALSE(scale_and_check(scaled, 0.5));
  torch::set_num_threads(threads);
  EXPECT_DOUBLE_EQ(clip_factor(25.0, 1.0), 0.2);
  EXPECT_DOUBLE_EQ(clip_factor(0.25, 1.0), 1.0);
}

class CheckpointFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "manyranks_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ / "state.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
  std::string path_;
};

struct TrainingRun {
  explicit TrainingRun(uint64_t seed) {
    torch::manual_seed(seed);
    ModelShape shape = small("gpt");
    shape.dropout = 0.1;  // so that the random numbers matter
    model = make_model("gpt", shape);
    flat = std::make_unique<FlatParameters>(*model);
    optimizer = std::make_unique<Adam>(flat->parameters(), flat->gradients(), AdamOptions{});
    state = {model.get(), optimizer.get(), {}};
  }
  double train(int steps) {
    double loss = 0;
    for (int i = 0; i < steps; ++i, ++state.counters["step"]) {
      flat->zero_grad();
      const torch::Tensor value = cross_entropy(model->forward(model->example_input(2)), model->example_target(2));
      value.backward();
      optimizer->step(1e-3);
      loss = value.item<double>();
    }
    return loss;
  }
  std::shared_ptr<Model> model;
  std::unique_ptr<FlatParameters> flat;
  std::unique_ptr<Adam> optimizer;
  TrainingState state;
};

TEST_F(CheckpointFile, ResumedRunHasTheSameBits) {
  TrainingRun first(1);
  first.train(3);
  save_checkpoint(path_, first.state);
  const double expected = first.train(4);

  TrainingRun second(99);
  second.train(1);
  load_checkpoint(path_, second.state);
  EXPECT_EQ(second.state.counters.at("step"), 3);
  EXPECT_EQ(second.optimizer->steps_done(), 3);
  second.flat->check_views();
  EXPECT_EQ(second.train(4), expected);
  EXPECT_TRUE(torch::equal(second.flat->parameters(), first.flat->parameters()));
  EXPECT_TRUE(torch::equal(second.optimizer->state()[1].second, first.optimizer->state()[1].second));
}

TEST_F(CheckpointFile, BuffersToo) {
  torch::manual_seed(1);
  auto model = make_model("resnet18", small("resnet18"));
  backward(*model);  // moves the running statistics
  save_tensors(path_, named_state(*model), {{"kind", "resnet18"}});
  auto other = make_model("resnet18", small("resnet18"));
  load_tensors_into(path_, named_state(*other));
  const NamedTensors expected = named_state(*model), got = named_state(*other);
  ASSERT_EQ(expected.size(), 62U + 60U);  // 20 batch norms: mean, variance, count
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(got[i].second, expected[i].second)) << expected[i].first;
}

TEST_F(CheckpointFile, EveryTypeBitByBit) {
  NamedTensors tensors;
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong, torch::kInt, torch::kShort,
                           torch::kChar, torch::kByte, torch::kBool}) {
    tensors.emplace_back(c10::toString(dtype), (torch::rand({3, 5}) * 100).to(dtype));
  }
  tensors.emplace_back("scalar", torch::tensor(2.5));
  tensors.emplace_back("transposed", torch::rand({4, 3}).t());
  tensors.emplace_back("nan", torch::tensor({NAN, -0.0F}));
  save_tensors(path_, tensors, {{"note", "x"}});
  safetensors::Metadata metadata;
  const NamedTensors loaded = load_tensors(path_, &metadata);
  EXPECT_EQ(metadata.at("note"), "x");
  std::map<std::string, torch::Tensor> got(loaded.begin(), loaded.end());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_EQ(got.at(name).scalar_type(), tensor.scalar_type()) << name;
    ASSERT_EQ(got.at(name).sizes(), tensor.sizes()) << name;
    EXPECT_EQ(std::memcmp(got.at(name).data_ptr(), tensor.contiguous().data_ptr(), tensor.nbytes()), 0) << name;
  }
}

TEST_F(CheckpointFile, MisfitChangesNothing) {
  save_tensors(path_, {{"a", torch::ones({2})}, {"b", torch::ones({3})}});
  const torch::Tensor a = torch::zeros({2}), b = torch::zeros({3});
  for (const NamedTensors& wrong : std::vector<NamedTensors>{{{"a", a}},
                                                             {{"a", a}, {"b", b}, {"c", torch::zeros({1})}},
                                                             {{"a", a}, {"b", torch::zeros({3, 1})}},
                                                             {{"a", a}, {"b", torch::zeros({3}, torch::kDouble)}}}) {
    try {
      load_tensors_into(path_, wrong);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code, Exit::data);
    }
    EXPECT_EQ(a.sum().item<float>(), 0.0F);
  }
  load_tensors_into(path_, {{"b", b}, {"a", a}});
  EXPECT_EQ(a.sum().item<float>() + b.sum().item<float>(), 5.0F);
}

}  // namespace
}  // namespace manyranks
