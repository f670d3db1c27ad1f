#include "data/image_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>

#include "data/jpeg.hpp"    // decode_jpeg, encode_jpeg
#include "data/resize.hpp"  // resize_bilinear

namespace manyranks {

namespace fs = std::filesystem;

namespace {

bool is_jpeg_name(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".jpeg" || ending == ".jpg";
}

// Sorted, so that every rank and every file system numbers classes and samples the same. Hidden files are not data.
std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    if (it->path().filename().string().front() != '.') entries.push_back(it->path());
  if (code) throw data_error("read " + folder.string(), code.message(), "check that the folder is there and that you may read it");
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace

void decode_and_resize(ByteView jpeg, const std::string& file, const ImageOptions& options, std::uint8_t* pixels) {
  thread_local Image image;
  const JpegSize enough = options.reduced_scale ? JpegSize{options.size, options.size} : JpegSize{};
  decode_jpeg(jpeg, file, image, enough);
  const Resize plan = options.stretch ? stretch(image.width, image.height, 3, options.size) : centre_crop(image.width, image.height, 3, options.size);
  resize_bilinear(image.pixels.data(), plan, pixels);
}

std::vector<std::string> class_folders(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : sorted_entries(folder))
    if (fs::is_directory(entry)) names.push_back(entry.filename().string());
  return names;
}

ImageFolder::ImageFolder(const fs::path& folder, ImageOptions options, std::vector<std::string> class_names)
    : folder_(folder), options_(options), class_names_(std::move(class_names)) {
  const auto found = class_folders(folder);
  if (class_names_.empty()) class_names_ = found;
  if (class_names_.empty()) throw bad_file(folder.string(), 0, "no class folders in it");
  for (const auto& name : class_names_)
    if (!std::binary_search(found.begin(), found.end(), name))
      throw bad_file((folder / name).string(), 0, "this class folder is missing", "the training split has it");
  for (const auto& name : found)
    if (std::find(class_names_.begin(), class_names_.end(), name) == class_names_.end())
      throw bad_file((folder / name).string(), 0, "this class folder is not in the training split");
  for (std::size_t label = 0; label < class_names_.size(); ++label) {
    const std::size_t before = samples_.size();
    for (const auto& file : sorted_entries(folder / class_names_[label]))
      if (is_jpeg_name(file)) samples_.push_back({file.filename().string(), static_cast<int>(label)});
    if (samples_.size() == before) throw bad_file((folder / class_names_[label]).string(), 0, "no JPEG file in this class folder");
  }
}

fs::path ImageFolder::path(std::int64_t index) const {
  const Sample& sample = samples_[static_cast<std::size_t>(index)];
  return folder_ / class_names_[static_cast<std::size_t>(sample.label)] / sample.file;
}

std::int64_t ImageFolder::read(std::int64_t index, std::uint8_t* pixels) const {
  thread_local Bytes bytes;
  const fs::path file = path(index);
  read_file(file, bytes);
  decode_and_resize(bytes, file.string(), options_, pixels);
  return samples_[static_cast<std::size_t>(index)].label;
}

std::string ImageFolder::describe() const {
  return fmt::format("ImageFolder of JPEG, {}{}: {}", folder_.string(), options_.reduced_scale ? ", decoded at reduced scale" : "", size_line(*this));
}

void write_image_folder(const Dataset& dataset, const fs::path& folder, std::int64_t count, int quality) {
  const ImageShape shape = dataset.shape();
  if (shape.channels != 3) throw usage_error("write " + folder.string(), "only colour images become JPEG files here");
  Bytes pixels(shape.values());
  for (std::int64_t i = 0; i < std::min(count, dataset.size()); ++i) {
    const auto label = dataset.read(i, pixels.data());
    const fs::path target = folder / fmt::format("class_{:02}", label) / fmt::format("{:06}.jpg", i);
    const Bytes jpeg = encode_jpeg(pixels.data(), shape.width, shape.height, quality);
    fs::create_directories(target.parent_path());
    std::ofstream out(target, std::ios::binary);
    out.write(reinterpret_cast<const char*>(jpeg.data()), static_cast<std::streamsize>(jpeg.size()));
    if (!out.flush()) throw io_error("write " + target.string(), "the file could not be written", "is the disk full?");
  }
}

}  // namespace manyranks
