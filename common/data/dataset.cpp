#include "data/dataset.hpp"

#include <fmt/format.h>

namespace manyranks {

std::string size_line(const Dataset& dataset) {
  const ImageShape shape = dataset.shape();
  return fmt::format("{} samples, {}x{}x{}, {} classes", dataset.size(), shape.channels, shape.height, shape.width, dataset.classes());
}

const char* split_name(Split split) { return split == Split::train ? "train" : "test"; }

}  // namespace manyranks
