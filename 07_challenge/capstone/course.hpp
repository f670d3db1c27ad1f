// The capstone: train a given model to a target loss, as fast as you can, on the ranks, the memory and the link you are given.
//
// You write make_trainer(). The course calls whole() and step(), by turns, until the losses that step() returns reach the target, and counts the
// time of make_trainer() and of every step(), the slowest rank's. Everything in common/ may be used: meshes, tensor and sequence parallelism,
// ZeRO, buckets, overlap.
//
// What is checked (inspector.cpp): whole() before the first step is the given model, bit by bit; in the first step, and in one of every
// smooth / 2 that nothing gives away, the loss you return is the given model's on the given samples with the weights that whole() showed; every sample of
// every step was drawn from the loader; no rank holds more than the cap in make_trainer() and step(); whole() takes about as long as the reference's;
// and another process, which never ran your code, evaluates the final weights on data made from a seed that did not exist before.
#pragma once

#include "launch/torch.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"  // Communicator
#include "data/text.hpp"          // Text
#include "models/model.hpp"       // Model, ModelShape

namespace manyranks::capstone {

struct Samples {
  torch::Tensor input, target;  // gpt: (N, T) and (N, T), int64; resnet: (N, 1, 28, 28) in [-0.5, 0.5] and (N), int64
};

struct Task {
  std::string name;          // gpt | resnet
  ModelShape shape;
  uint64_t seed = 1;         // of the first weights and of the data
  int64_t global_batch = 8;  // samples of a step, over all ranks
  double learning_rate = 1e-3;  // what the reference uses, with Adam; yours is yours
  double target = 1.0;       // mean loss of the last `smooth` steps
  int64_t smooth = 8, most_steps = 400;

  std::string model() const { return name == "gpt" ? "gpt" : "resnet18"; }
  std::shared_ptr<Model> dense() const;                  // with the first weights
  torch::Tensor loss(Model& model, const Samples& samples) const;  // mean over the samples
};
Task make_task(const std::string& name, bool quick, uint64_t seed);

// Samples of a step by number, 0 .. global_batch - 1: who asks for the same gets the same. Keeps a record of what it gave.
class Loader {
 public:
  Loader(Task task, torch::Device device);
  Samples batch(int64_t step, int64_t first, int64_t count);

 private:
  friend class Inspector;
  Samples make(int64_t step, int64_t first, int64_t count) const;
  Task task_;
  torch::Device device_;
  Text text_;
  struct Given {
    int64_t step, first, count;
    uint64_t hash;
  };
  std::vector<Given> given_;
};

struct Course {
  const Task& task;
  Communicator& world;
  Loader& loader;
  torch::Device device;
};

class Trainer {
 public:
  virtual ~Trainer() = default;
  // One step of training on the samples of this step. Returns the mean loss over the global batch before the step, the same on every rank.
  virtual double step(int64_t step) = 0;
  // All parameters as the dense model has them, in its order, on every rank; copies. Called before every step and after the last. Not under the
  // cap, and not in the score; but the grader refuses a run whose whole() takes far longer than the reference's. Collective.
  virtual std::vector<torch::Tensor> whole() = 0;
};

// Yours. Collective.
std::unique_ptr<Trainer> make_trainer(Course& course);

}  // namespace manyranks::capstone
