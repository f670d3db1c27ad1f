#include "parallel/mesh.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/communicator.hpp"
#include "launch/errors.hpp"

namespace manyranks {
namespace {

// "1 x 4, 2 x 2, 4 x 1": every way to write `product` as that many factors.
std::vector<std::string> factorisations(int product, size_t factors) {
  if (factors == 1) return {std::to_string(product)};
  std::vector<std::string> all;
  for (int first = 1; first <= product; ++first)
    if (product % first == 0)
      for (const std::string& rest : factorisations(product / first, factors - 1)) all.push_back(fmt::format("{} x {}", first, rest));
  return all;
}

}  // namespace

Mesh::Mesh(Communicator& world, std::vector<Axis> axes) : axes_(std::move(axes)) {
  int product = 1;
  std::vector<std::string> names;
  for (const Axis& axis : axes_) {
    if (axis.size < 1) throw usage_error("mesh", fmt::format("{} is {}", axis.name, axis.size), "1 or more");
    product *= axis.size;
    names.push_back(axis.name);
  }
  if (product != world.size())
    throw usage_error("mesh", fmt::format("{} is {} ranks, and there are {}", text(), product, world.size()),
                      fmt::format("{} of: {}", fmt::join(names, " x "), fmt::join(factorisations(world.size(), axes_.size()), ", ")));
  int stride = product;
  for (const Axis& axis : axes_) {
    const int inner = stride / axis.size, coordinate = world.rank() / inner % axis.size;
    along_.push_back(world.split(world.rank() - coordinate * inner, coordinate));  // the color: my rank with this coordinate 0
    stride = inner;
  }
}

Mesh::~Mesh() = default;

Communicator& Mesh::operator[](const std::string& name) const {
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == name) return *along_[i];
  throw usage_error("mesh", fmt::format("there is no axis '{}' in {}", name, text()));
}

std::string Mesh::text() const {
  std::vector<std::string> parts;
  for (const Axis& axis : axes_) parts.push_back(fmt::format("{} {}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(parts, " x "));
}

}  // namespace manyranks
