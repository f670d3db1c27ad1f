#pragma once

#include "kit.hpp"

namespace manyranks {

// Memory that counts how often it is touched. On a device whose optimiser step is bound by memory, that is the step's time.
class Array {
 public:
  explicit Array(std::span<float> data) : data_(data) {}
  size_t size() const { return data_.size(); }
  float load(size_t i) { ++loads; return data_[i]; }
  void store(size_t i, float value) { ++stores; data_[i] = value; }
  int64_t loads = 0, stores = 0;

 private:
  std::span<float> data_;
};

struct SgdSettings {
  float learning_rate, momentum, weight_decay;
  float gradient_scale;  // 1/N after a sum over N ranks
};

extern "C" void sgd_step(Array& parameters, Array& velocity, Array& gradients, const SgdSettings& settings);

}  // namespace manyranks
