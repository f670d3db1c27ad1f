// `digits`: handwritten-like digits, drawn when they are read. Needs no download, and is a real problem: see digits.cpp.
#pragma once

#include "data/dataset.hpp"

namespace manyranks {

// Sample `index` is a function of (seed, split, index) alone: any order, any thread, any rank gives the same pixels.
class Digits final : public Dataset {
 public:
  static constexpr std::int64_t train_size = 60000, test_size = 10000;  // as MNIST

  explicit Digits(Split split, std::uint64_t seed = 1, std::int64_t size = 0);  // 0: the usual size

  std::int64_t size() const override { return size_; }
  int classes() const override { return 10; }
  ImageShape shape() const override { return {1, 28, 28}; }
  std::int64_t read(std::int64_t index, std::uint8_t* pixels) const override;
  std::string name() const override { return "digits"; }
  std::string describe() const override;

 private:
  Split split_;
  std::uint64_t seed_;
  std::int64_t size_;
};

}  // namespace manyranks
