// CIFAR-10's binary format: records of 3073 bytes, one label and 32x32 pixels as three planes (red, green, blue).
#pragma once

#include <filesystem>
#include <vector>

#include "data/dataset.hpp"
#include "data/file.hpp"  // Bytes, ByteView

namespace manyranks {

constexpr std::size_t cifar_plane = 32 * 32, cifar_record = 1 + 3 * cifar_plane;

// Checks length and labels; returns the number of records.
std::size_t check_cifar(ByteView bytes, const std::string& file);
// One checked record: pixels from planes to HWC; returns the label.
std::int64_t read_cifar(ByteView bytes, std::size_t record, std::uint8_t* pixels);

class CifarDataset final : public Dataset {
 public:
  explicit CifarDataset(std::vector<std::filesystem::path> files);  // data_batch_1.bin ... or test_batch.bin

  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size() / cifar_record); }
  int classes() const override { return 10; }
  ImageShape shape() const override { return {3, 32, 32}; }
  std::int64_t read(std::int64_t index, std::uint8_t* pixels) const override;
  std::string name() const override { return "cifar10"; }
  std::string describe() const override;

 private:
  std::vector<std::filesystem::path> files_;
  Bytes bytes_;  // all files end to end: 154 MB for the training set
};

}  // namespace manyranks
