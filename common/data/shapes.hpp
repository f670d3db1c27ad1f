// `shapes`: colour images of ten figures, drawn when they are read: the embedded stand-in for CIFAR (32) and ImageNet (224).
#pragma once

#include "data/dataset.hpp"

namespace manyranks {

// Ten figures in random colours, textures, places, sizes and turns, on textured grounds of other colours, so that
// only the outline tells the class. Sample `index` is a function of (seed, split, index) alone.
class Shapes final : public Dataset {
 public:
  static constexpr std::int64_t train_size = 50000, test_size = 10000;  // as CIFAR-10

  explicit Shapes(Split split, int side = 32, std::uint64_t seed = 1, std::int64_t size = 0);  // 0: the usual size

  std::int64_t size() const override { return size_; }
  int classes() const override { return 10; }
  ImageShape shape() const override { return {3, side_, side_}; }
  std::int64_t read(std::int64_t index, std::uint8_t* pixels) const override;
  std::string name() const override { return "shapes"; }
  std::string describe() const override;

  static const char* class_name(int label);

 private:
  Split split_;
  int side_;
  std::uint64_t seed_;
  std::int64_t size_;
};

}  // namespace manyranks
