#include "data/open.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "data/cifar.hpp"   // CifarDataset
#include "data/digits.hpp"  // Digits
#include "data/idx.hpp"     // IdxDataset
#include "data/shapes.hpp"  // Shapes
#include "data/shards.hpp"  // Shards

namespace manyranks {

namespace fs = std::filesystem;

namespace {

std::unique_ptr<Dataset> open_embedded(const OpenOptions& o) {
  if (o.embedded == "digits") return std::make_unique<Digits>(o.split, o.seed, o.size);
  if (o.embedded == "shapes") return std::make_unique<Shapes>(o.split, 32, o.seed, o.size);
  if (o.embedded == "shapes224") return std::make_unique<Shapes>(o.split, 224, o.seed, o.size);
  throw usage_error("open data", "no embedded data set is called " + o.embedded, "digits, shapes or shapes224");
}

// The plain file or its .gz; empty if neither is there.
fs::path plain_or_gzip(const fs::path& path) {
  if (fs::exists(path)) return path;
  const fs::path packed = path.string() + ".gz";
  return fs::exists(packed) ? packed : fs::path{};
}

std::unique_ptr<Dataset> try_idx(const OpenOptions& o) {
  const std::string prefix = o.split == Split::train ? "train" : "t10k";
  const fs::path dir = o.dir;
  const fs::path images = plain_or_gzip(dir / (prefix + "-images-idx3-ubyte")), labels = plain_or_gzip(dir / (prefix + "-labels-idx1-ubyte"));
  if (images.empty() && labels.empty()) return nullptr;
  if (images.empty()) throw bad_file((dir / (prefix + "-images-idx3-ubyte")).string(), 0, "missing beside the labels");
  if (labels.empty()) throw bad_file((dir / (prefix + "-labels-idx1-ubyte")).string(), 0, "missing beside the images");
  return std::make_unique<IdxDataset>(images, labels, o.idx_classes);
}

std::unique_ptr<Dataset> try_cifar(const OpenOptions& o) {
  for (const fs::path& dir : {fs::path(o.dir), fs::path(o.dir) / "cifar-10-batches-bin"}) {
    if (!fs::exists(dir / "data_batch_1.bin") && !fs::exists(dir / "test_batch.bin")) continue;
    if (o.split == Split::test) return std::make_unique<CifarDataset>(std::vector<fs::path>{dir / "test_batch.bin"});
    std::vector<fs::path> files;
    for (int i = 1; i <= 5; ++i) files.push_back(dir / fmt::format("data_batch_{}.bin", i));
    return std::make_unique<CifarDataset>(files);
  }
  return nullptr;
}

std::unique_ptr<Dataset> try_shards(const OpenOptions& o) {
  std::vector<fs::path> mine;
  bool any = false;
  const std::string prefix = o.split == Split::train ? "train-" : "val-";
  for (const auto& entry : fs::directory_iterator(o.dir)) {
    if (entry.path().extension() != ".shard") continue;
    any = true;
    if (entry.path().filename().string().starts_with(prefix)) mine.push_back(entry.path());
  }
  if (!any) return nullptr;
  if (mine.empty()) throw bad_file(o.dir, 0, "shards, but none called " + prefix + "*.shard");
  std::sort(mine.begin(), mine.end());
  return std::make_unique<Shards>(mine, o.image);
}

std::unique_ptr<Dataset> try_image_folder(const OpenOptions& o) {
  const fs::path dir = o.dir, train = dir / "train", val = dir / "val";
  if (fs::is_directory(train)) {
    if (o.split == Split::train) return std::make_unique<ImageFolder>(train, o.image);
    return std::make_unique<ImageFolder>(val, o.image, class_folders(train));
  }
  if (class_folders(dir).empty()) return nullptr;
  if (o.split == Split::test)
    throw bad_file(dir.string(), 0, "class folders, but no test split", "put them under train/ and val/");
  return std::make_unique<ImageFolder>(dir, o.image);
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const OpenOptions& options) {
  if (options.dir.empty()) return open_embedded(options);
  std::error_code code;
  if (!fs::is_directory(options.dir, code))
    throw data_error("open " + options.dir, code ? code.message() : "not a folder", "--data takes a folder; leave it out for the embedded data set");
  for (auto* attempt : {try_idx, try_cifar, try_shards, try_image_folder})
    if (auto dataset = attempt(options)) return dataset;
  throw bad_file(options.dir, 0, "nothing known in this folder",
                 "known are IDX (train-images-idx3-ubyte), CIFAR-10 (data_batch_1.bin), *.shard, and class folders of JPEG files");
}

}  // namespace manyranks
