// What the lessons of this chapter share: images to learn, and a training run in any precision.
#pragma once

#include "launch/torch.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "launch/process.hpp"  // Process, Options
#include "models/model.hpp"    // Model, ModelShape
#include "train/amp.hpp"       // Amp, Autocast

namespace manyranks {

class Communicator;

struct Samples {
  torch::Tensor x, y;  // (N, C, H, W), normalised; and labels
};

struct Images {
  std::string name;  // digits | shapes
  Samples train, test;
  ModelShape shape(const std::string& model) const;  // the model's usual shape, made to fit these images
};

// The first samples of an embedded data set, or of --data, as tensors on the device.
Images load_images(const std::string& name, const std::string& dir, uint64_t seed, int64_t train, int64_t test, torch::Device device = torch::kCPU);

// The step's batch: one window after another, round and round.
Samples batch_of(const Samples& samples, int64_t step, int64_t size);

// Exit 64 on several ranks: two that each train alone would look like scaling.
void one_rank_only(const Process& process);

double mean_of_last(const std::vector<double>& losses, size_t count);  // of all, where there are fewer

struct Recipe {
  std::string model = "convnet";
  Amp amp = {};
  int64_t steps = 100, batch = 64, width = 0;  // 0: the model's usual
  double rate = 2e-3;  // Adam's at its highest; falls along half a cosine, so that a run ends where it stays
  uint64_t seed = 1;
  bool channels_last = false;
};

struct Outcome {
  std::vector<double> losses, seconds;  // per step
  double accuracy = 0;                  // of the test samples, in the precision that was trained in
  int64_t activation_bytes = 0;         // between forward and backward of the last step; 0 where the allocator is not installed
  int64_t peak_bytes = 0;               // of training, beyond what was there before (the images); likewise
  int64_t skipped = 0;                  // steps that overflowed
};

// Mixed precision as LibTorch does it: float32 weights, autocast, Adam, and for fp16 a dynamic loss scale.
Outcome train(Communicator& world, const Images& images, const Recipe& recipe, torch::Device device);

}  // namespace manyranks
