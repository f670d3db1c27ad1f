#include "data/cifar.hpp"

#include <fmt/format.h>

namespace manyranks {

std::size_t check_cifar(ByteView bytes, const std::string& file) {
  if (bytes.empty()) throw bad_file(file, 0, "the file is empty", "fetch it again");
  const std::size_t records = bytes.size() / cifar_record, rest = bytes.size() % cifar_record;
  if (rest != 0)
    throw bad_file(file, records * cifar_record, fmt::format("{} bytes left over after {} records of {} bytes", rest, records, cifar_record),
                   "the file is truncated, or is not CIFAR-10's binary version");
  for (std::size_t record = 0; record < records; ++record)
    if (bytes[record * cifar_record] > 9)
      throw bad_file(file, record * cifar_record, fmt::format("label {} of record {} is not below 10", bytes[record * cifar_record], record));
  return records;
}

std::int64_t read_cifar(ByteView bytes, std::size_t record, std::uint8_t* pixels) {
  const std::uint8_t* source = bytes.data() + record * cifar_record;
  for (std::size_t i = 0; i < cifar_plane; ++i)
    for (std::size_t channel = 0; channel < 3; ++channel) pixels[3 * i + channel] = source[1 + channel * cifar_plane + i];
  return source[0];
}

CifarDataset::CifarDataset(std::vector<std::filesystem::path> files) : files_(std::move(files)) {
  Bytes bytes;
  for (const auto& file : files_) {
    read_file(file, bytes);
    check_cifar(bytes, file.string());
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
}

std::int64_t CifarDataset::read(std::int64_t index, std::uint8_t* pixels) const {
  return read_cifar(bytes_, static_cast<std::size_t>(index), pixels);
}

std::string CifarDataset::describe() const {
  return fmt::format("CIFAR-10 binary, {} file(s) from {}: {}", files_.size(), files_.front().parent_path().string(), size_line(*this));
}

}  // namespace manyranks
