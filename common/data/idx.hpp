// MNIST's file format, IDX: big-endian header, then the values. Plain or gzip; EMNIST, KMNIST and Fashion-MNIST use it too.
//
//   byte 0-1  zero      byte 2  type (8: uint8)      byte 3  number of dimensions d
//   then d x uint32 sizes, then the product of the sizes in bytes, and nothing after them
#pragma once

#include <filesystem>

#include "data/dataset.hpp"
#include "data/file.hpp"  // Bytes, ByteView

namespace manyranks {

struct IdxArray {
  std::vector<std::uint32_t> sizes;
  Bytes values;
  std::uint64_t header = 0;  // bytes before the first value, for error messages
};

// Checks type, dimensions and length before it allocates. `file` is what errors call the bytes.
IdxArray parse_idx(ByteView bytes, int dimensions, const std::string& file);

class IdxDataset final : public Dataset {
 public:
  // A label that is not below `classes` is refused here, once, not in the middle of an epoch.
  IdxDataset(const std::filesystem::path& images, const std::filesystem::path& labels, int classes = 10);

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.values.size()); }
  int classes() const override { return classes_; }
  ImageShape shape() const override { return {1, static_cast<int>(images_.sizes[1]), static_cast<int>(images_.sizes[2])}; }
  std::int64_t read(std::int64_t index, std::uint8_t* pixels) const override;
  std::string name() const override { return "idx"; }
  std::string describe() const override;

 private:
  std::string images_file_;
  int classes_;
  IdxArray images_, labels_;
};

}  // namespace manyranks
