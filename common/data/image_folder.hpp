// An ImageFolder: one folder per class, JPEG files in it; the class number is the place of the folder's name in order.
#pragma once

#include <filesystem>
#include <vector>

#include "data/dataset.hpp"
#include "data/file.hpp"  // ByteView

namespace manyranks {

struct ImageOptions {
  int size = 224;              // samples are size x size
  bool stretch = false;        // false: shorter side to size, then the centre; true: both sides to size
  bool reduced_scale = false;  // decode at 1/8, 1/4 or 1/2 where that still covers the size: faster, not Pillow's pixels
};

// JPEG bytes to options.size squared RGB pixels: what ImageFolder and Shards share. Memory is kept per thread.
void decode_and_resize(ByteView jpeg, const std::string& file, const ImageOptions& options, std::uint8_t* pixels);

class ImageFolder final : public Dataset {
 public:
  // `folder` holds the class folders. Lists the files once; an empty class folder is refused. With `class_names` given
  // (those of the training split), exactly these folders must be there.
  explicit ImageFolder(const std::filesystem::path& folder, ImageOptions options = {}, std::vector<std::string> class_names = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  int classes() const override { return static_cast<int>(class_names_.size()); }
  ImageShape shape() const override { return {3, options_.size, options_.size}; }
  std::int64_t read(std::int64_t index, std::uint8_t* pixels) const override;
  std::string name() const override { return "imagefolder"; }
  std::string describe() const override;

  const std::vector<std::string>& class_names() const { return class_names_; }
  std::filesystem::path path(std::int64_t index) const;

 private:
  struct Sample {
    std::string file;
    int label;
  };
  std::filesystem::path folder_;
  ImageOptions options_;
  std::vector<std::string> class_names_;
  std::vector<Sample> samples_;
};

// The names of the class folders, in order; empty if there are none.
std::vector<std::string> class_folders(const std::filesystem::path& folder);

// Writes the first `count` samples of a colour data set as FOLDER/class_00/000000.jpg ...: an ImageFolder workload
// where there is no download. Labels are kept; a class with no sample among them gets no folder.
void write_image_folder(const Dataset& dataset, const std::filesystem::path& folder, std::int64_t count, int quality = 90);

}  // namespace manyranks
