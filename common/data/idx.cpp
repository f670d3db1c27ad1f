#include "data/idx.hpp"

#include <fmt/format.h>

#include <cstring>

namespace manyranks {

namespace {

// The number of bytes that the header promises in all, itself included.
std::uint64_t check_header(ByteView bytes, int dimensions, const std::string& file, IdxArray& array) {
  array.header = 4 + 4 * static_cast<std::uint64_t>(dimensions);
  if (bytes.size() < 4) throw bad_file(file, bytes.size(), "the file ends inside the IDX magic number");
  if (bytes[0] != 0 || bytes[1] != 0) throw bad_file(file, 0, "no IDX file: the first two bytes are not zero");
  if (bytes[2] != 8) throw bad_file(file, 2, fmt::format("IDX type 0x{:02x}, only 0x08 (uint8) is known here", bytes[2]));
  if (bytes[3] != dimensions)
    throw bad_file(file, 3, fmt::format("{} dimensions, {} expected", bytes[3], dimensions), "are images and labels exchanged?");
  if (bytes.size() < array.header) throw bad_file(file, bytes.size(), "the file ends inside the IDX header");
  std::uint64_t total = 1;
  for (int d = 0; d < dimensions; ++d) {
    const std::uint8_t* p = bytes.data() + 4 + 4 * d;
    const std::uint32_t size = std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
    if (size == 0) throw bad_file(file, 4 + 4 * d, fmt::format("dimension {} is zero", d));
    if (__builtin_mul_overflow(total, std::uint64_t{size}, &total)) throw bad_file(file, 4 + 4 * d, "the sizes overflow 64 bits");
    array.sizes.push_back(size);
  }
  if (__builtin_add_overflow(total, array.header + 1, &total)) throw bad_file(file, 4, "the sizes overflow 64 bits");
  return total - 1;
}

}  // namespace

IdxArray parse_idx(ByteView bytes, int dimensions, const std::string& file) {
  IdxArray array;
  Bytes unpacked;
  if (is_gzip(bytes)) {
    const Bytes head = gunzip(bytes, 4 + 4 * static_cast<std::uint64_t>(dimensions), file);
    const std::uint64_t total = check_header(head, dimensions, file, array);
    array.sizes.clear();
    unpacked = gunzip(bytes, total + 1, file);  // one more than promised shows a stream that is too long
    bytes = unpacked;
  }
  const std::uint64_t total = check_header(bytes, dimensions, file, array);
  if (bytes.size() < total)
    throw bad_file(file, bytes.size(), fmt::format("the data ends here, the header promises {} bytes", total), "the file is truncated: fetch it again");
  if (bytes.size() > total) throw bad_file(file, total, fmt::format("data goes on after the {} bytes that the header promises", total));
  array.values.assign(bytes.begin() + static_cast<std::ptrdiff_t>(array.header), bytes.end());
  return array;
}

namespace {
IdxArray load(const std::filesystem::path& path, int dimensions) {
  Bytes bytes;
  read_file(path, bytes);
  return parse_idx(bytes, dimensions, path.string());
}
}  // namespace

IdxDataset::IdxDataset(const std::filesystem::path& images, const std::filesystem::path& labels, int classes)
    : images_file_(images.string()), classes_(classes), images_(load(images, 3)), labels_(load(labels, 1)) {
  if (images_.sizes[1] > 4096 || images_.sizes[2] > 4096)
    throw bad_file(images_file_, 8, fmt::format("images of {}x{}: more than 4096 a side", images_.sizes[1], images_.sizes[2]));
  if (images_.sizes[0] != labels_.sizes[0])
    throw bad_file(labels.string(), 4, fmt::format("{} labels for the {} images of {}", labels_.sizes[0], images_.sizes[0], images_file_));
  for (std::size_t i = 0; i < labels_.values.size(); ++i)
    if (labels_.values[i] >= classes_)
      throw bad_file(labels.string(), labels_.header + i, fmt::format("label {} of sample {} is not below {}", labels_.values[i], i, classes_));
}

std::int64_t IdxDataset::read(std::int64_t index, std::uint8_t* pixels) const {
  const std::size_t bytes = shape().values();
  std::memcpy(pixels, images_.values.data() + static_cast<std::size_t>(index) * bytes, bytes);
  return labels_.values[static_cast<std::size_t>(index)];
}

std::string IdxDataset::describe() const { return fmt::format("IDX (MNIST format), {}: {}", images_file_, size_line(*this)); }

}  // namespace manyranks
