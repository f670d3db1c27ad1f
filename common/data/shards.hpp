// Shards: a million small files as a few large ones, read in long runs. scripts/prepare_imagenet.py shard writes them.
//
//   byte 0   "MRSHARD1"                 byte 8   uint32 classes, uint32 samples n (little-endian, as all numbers here)
//   byte 16  n x { uint64 offset, uint32 bytes, uint32 label, uint32 crc32, uint32 zero }
//   then     the n JPEG files end to end, in the order of the index, up to the end of the file
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <vector>

#include "data/dataset.hpp"
#include "data/file.hpp"          // InputFile
#include "data/image_folder.hpp"  // ImageOptions

namespace manyranks {

struct ShardEntry {
  std::uint64_t offset;
  std::uint32_t bytes, label, crc;
};

struct ShardIndex {
  std::uint32_t classes = 0;
  std::vector<ShardEntry> entries;
};

constexpr std::uint64_t shard_header = 16, shard_entry = 24;

// `head` is the beginning of the file, its header and index at least; every entry is checked against `file_bytes`.
ShardIndex parse_shard(ByteView head, std::uint64_t file_bytes, const std::string& file);

class Shards final : public Dataset {
 public:
  // Samples are numbered through the files in order. A sampler with `block = read_ahead` reads each file in long runs.
  static constexpr std::int64_t read_ahead = 256;  // samples asked of the kernel at once: about 28 MB of ImageNet

  explicit Shards(const std::vector<std::filesystem::path>& files, ImageOptions options = {});

  std::int64_t size() const override { return first_.back(); }
  int classes() const override { return classes_; }
  ImageShape shape() const override { return {3, options_.size, options_.size}; }
  std::int64_t read(std::int64_t index, std::uint8_t* pixels) const override;
  std::string name() const override { return "shards"; }
  std::string describe() const override;

 private:
  ImageOptions options_;
  int classes_ = 0;
  std::vector<InputFile> files_;
  std::vector<ShardIndex> indexes_;
  std::vector<std::int64_t> first_;  // number of the first sample of each file, and the total
  mutable std::atomic<std::int64_t> asked_{-1};
};

}  // namespace manyranks
