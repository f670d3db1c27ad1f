#include "parallel/strategy.hpp"

#include <fmt/format.h>

#include "launch/errors.hpp"
#include "models/model.hpp"
#include "parallel/distributed_optimizer.hpp"
#include "parallel/fully_sharded.hpp"
#include "train/flat_parameters.hpp"

namespace manyranks {
namespace {

// Tensors of a list of optimisers, numbered.
NamedTensors state_of(const std::vector<Optimizer*>& optimizers) {
  NamedTensors tensors;
  for (size_t i = 0; i < optimizers.size(); ++i)
    for (const auto& [name, tensor] : optimizers[i]->state()) tensors.emplace_back(fmt::format("optimizer.{}.{}", i, name), tensor);
  return tensors;
}

Model& replicated(Communicator& world, Model& model) {
  replicate(world, model);
  return model;
}

class OverRanks : public Strategy {
 public:
  OverRanks(Communicator& world, Model& model) : world_(world), model_(model) {}
  torch::Tensor forward(torch::Tensor x) override { return model_.forward(x); }
  void step(double learning_rate) override { step(learning_rate, 1.0 / world_.size()); }
  using Strategy::step;
  std::vector<torch::Tensor> gather_parameters() override {
    std::vector<torch::Tensor> values;
    for (const auto& [name, tensor] : trainable_parameters(model_)) values.push_back(tensor.detach().clone());
    return values;
  }
  int64_t bytes_sent() const override { return world_.traffic().bytes_sent; }
  NamedTensors state() override {
    NamedTensors tensors = state_of(optimizers());
    for (const auto& [name, tensor] : trainable_parameters(model_)) tensors.emplace_back("model." + name, tensor.detach());
    return tensors;
  }
  void set_steps_done(int64_t steps) override {
    for (Optimizer* optimizer : optimizers()) optimizer->set_steps_done(steps);
  }

 protected:
  virtual std::vector<Optimizer*> optimizers() = 0;
  Communicator& world_;
  Model& model_;
};

// Whole gradients in one flat buffer; how they are summed is what differs.
class Flat : public OverRanks {
 public:
  Flat(const std::string& kind, Communicator& world, Model& model, const StrategyOptions& options)
      : OverRanks(world, model), kind_(kind), flat_(replicated(world, model), 1, [&](int64_t count, const char* purpose) {
          const bool shared = std::string_view(purpose) == "gradients" && kind != "alone";
          const Tag tag = std::string_view(purpose) == "gradients" ? Tag::gradients : Tag::parameters;
          MemoryTag scope(tag, "flat buffer");
          return shared ? allocate_shared(world, count, tag) : torch::zeros({count}, trainable_parameters(model).front().tensor.options().requires_grad(false));
        }) {
    MemoryTag tag(Tag::optimizer, "optimizer");
    optimizer_ = options.make_optimizer(flat_.parameters(), flat_.gradients());
  }
  void step(double learning_rate, double gradient_scale) override {
    if (kind_ == "naive")
      for (const auto& slot : flat_.slots())
        if (slot.parameter.requires_grad()) world_.all_reduce(as_row(slot.parameter.grad()));
    if (kind_ == "bucketed") world_.all_reduce(flat_.gradients());
    optimizer_->step(learning_rate, gradient_scale);
    flat_.zero_grad();
  }

 protected:
  std::vector<Optimizer*> optimizers() override { return {optimizer_.get()}; }

 private:
  std::string kind_;
  FlatParameters flat_;
  std::unique_ptr<Optimizer> optimizer_;
};

class Overlapped : public OverRanks {
 public:
  Overlapped(Communicator& world, Model& model, const StrategyOptions& options)
      : OverRanks(world, model), buckets_(world, model, options.buckets, [&world](const GradientBuckets::Bucket& bucket) {
          if (!bucket.last) return world.all_reduce_async(bucket.gradients);
          world.all_reduce(bucket.gradients);
          return Work();
        }) {
    MemoryTag tag(Tag::optimizer, "optimizer");
    optimizer_ = options.make_optimizer(buckets_.parameters(), buckets_.gradients());
  }
  void step(double learning_rate, double gradient_scale) override {
    buckets_.finish();
    optimizer_->step(learning_rate, gradient_scale);
    buckets_.zero_grad();
  }
  // By parameter: the order of the flat buffers is another one before the first step.
  NamedTensors state() override {
    NamedTensors tensors;
    for (const auto& [kind, flat] : NamedTensors(optimizer_->state()))
      for (const auto& [name, part] : buckets_.by_parameter(flat)) tensors.emplace_back(fmt::format("optimizer.{}.{}", kind, name), part);
    for (const auto& [name, tensor] : trainable_parameters(model_)) tensors.emplace_back("model." + name, tensor.detach());
    return tensors;
  }

 protected:
  std::vector<Optimizer*> optimizers() override { return {optimizer_.get()}; }

 private:
  GradientBuckets buckets_;
  std::unique_ptr<Optimizer> optimizer_;
};

class Horovod : public OverRanks {
 public:
  Horovod(Communicator& world, Model& model, const StrategyOptions& options) : OverRanks(world, model), flat_(replicated(world, model)) {
    MemoryTag tag(Tag::optimizer, "optimizer");
    optimizer_ = std::make_unique<DistributedOptimizer>(world, flat_, options.make_optimizer(flat_.parameters(), flat_.gradients()), FusionOptions{});
  }
  void step(double learning_rate, double gradient_scale) override {
    optimizer_->step(learning_rate, gradient_scale);
    flat_.zero_grad();
  }
  int64_t bytes_sent() const override { return optimizer_->traffic().bytes_sent; }

 protected:
  std::vector<Optimizer*> optimizers() override { return {&optimizer_->inner()}; }

 private:
  FlatParameters flat_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

class Zero12 : public OverRanks {
 public:
  Zero12(int stage, Communicator& world, Model& model, const StrategyOptions& options)
      : OverRanks(world, model), sharded_(world, model, stage, options.buckets.bytes, options.make_optimizer) {}
  void step(double learning_rate, double gradient_scale) override { sharded_.step(learning_rate, gradient_scale); }

 protected:
  std::vector<Optimizer*> optimizers() override { return sharded_.optimizers(); }

 private:
  ZeroSharded sharded_;
};

class Zero3 : public OverRanks {
 public:
  Zero3(Communicator& world, Model& model, const StrategyOptions& options)
      : OverRanks(world, model), sharded_(world, model, options.buckets.bytes, options.make_optimizer) {}
  torch::Tensor forward(torch::Tensor x) override { return sharded_.forward(x); }
  void follow() override { sharded_.follow(); }
  void step(double learning_rate, double gradient_scale) override { sharded_.step(learning_rate, gradient_scale); }
  std::vector<torch::Tensor> gather_parameters() override { return sharded_.gather_all(); }
  NamedTensors state() override {
    NamedTensors tensors = state_of(optimizers());
    tensors.emplace_back("parameter shard", sharded_.parameter_shard());
    return tensors;
  }

 protected:
  std::vector<Optimizer*> optimizers() override { return {&sharded_.optimizer()}; }

 private:
  FullySharded sharded_;
};

}  // namespace

std::vector<std::string> strategy_kinds() { return {"alone", "naive", "bucketed", "ddp", "horovod", "zero1", "zero2", "zero3"}; }

std::unique_ptr<Strategy> make_strategy(const std::string& kind, Communicator& world, Model& model, const StrategyOptions& options) {
  if (kind == "alone" || kind == "naive" || kind == "bucketed") return std::make_unique<Flat>(kind, world, model, options);
  if (kind == "ddp") return std::make_unique<Overlapped>(world, model, options);
  if (kind == "horovod") return std::make_unique<Horovod>(world, model, options);
  if (kind == "zero1") return std::make_unique<Zero12>(1, world, model, options);
  if (kind == "zero2") return std::make_unique<Zero12>(2, world, model, options);
  if (kind == "zero3") return std::make_unique<Zero3>(world, model, options);
  throw usage_error("strategy", "there is no strategy '" + kind + "'", "alone, naive, bucketed, ddp, horovod, zero1, zero2 or zero3");
}

MakeOptimizer make_sgd(double momentum, double weight_decay) {
  return [=](torch::Tensor parameters, torch::Tensor gradients) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Sgd>(parameters, gradients, SgdOptions{momentum, weight_decay});
  };
}

MakeOptimizer make_adam() {
  return [](torch::Tensor parameters, torch::Tensor gradients) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Adam>(parameters, gradients, AdamOptions{});
  };
}

MakeOptimizer make_optimizer_by_name(const std::string& name) {
  if (name == "sgd") return make_sgd();
  if (name == "adam") return make_adam();
  throw usage_error("--optimizer", "there is no optimizer '" + name + "'", "sgd or adam");
}

}  // namespace manyranks
