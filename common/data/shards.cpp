#include "data/shards.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>

namespace manyranks {

namespace {
template <typename T>
T little(const std::uint8_t* p) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(p[i]) << (8 * i);
  return value;
}
}  // namespace

ShardIndex parse_shard(ByteView head, std::uint64_t file_bytes, const std::string& file) {
  if (head.size() < shard_header) throw bad_file(file, head.size(), "the file ends inside the shard header", "the file is truncated: write it again");
  if (std::memcmp(head.data(), "MRSHARD1", 8) != 0) throw bad_file(file, 0, "no shard: it does not begin with MRSHARD1");
  ShardIndex index;
  index.classes = little<std::uint32_t>(head.data() + 8);
  const std::uint64_t samples = little<std::uint32_t>(head.data() + 12);
  if (index.classes == 0 || index.classes > (1u << 24)) throw bad_file(file, 8, fmt::format("{} classes", index.classes));
  if (samples == 0) throw bad_file(file, 12, "no samples");
  std::uint64_t expected = shard_header + samples * shard_entry;  // samples < 2^32: no overflow
  if (expected > head.size()) throw bad_file(file, 12, fmt::format("an index of {} samples does not fit into the file", samples));
  index.entries.reserve(samples);
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t at = shard_header + i * shard_entry;
    const std::uint8_t* p = head.data() + at;
    const ShardEntry entry{little<std::uint64_t>(p), little<std::uint32_t>(p + 8), little<std::uint32_t>(p + 12), little<std::uint32_t>(p + 16)};
    if (entry.offset != expected) throw bad_file(file, at, fmt::format("sample {} begins at {}, {} expected", i, entry.offset, expected));
    if (entry.bytes > file_bytes - std::min(expected, file_bytes))
      throw bad_file(file, at + 8, fmt::format("sample {} of {} bytes goes past the end of the file", i, entry.bytes), "the file is truncated: write it again");
    if (entry.label >= index.classes) throw bad_file(file, at + 12, fmt::format("label {} of sample {} is not below {}", entry.label, i, index.classes));
    expected += entry.bytes;
    index.entries.push_back(entry);
  }
  if (expected != file_bytes) throw bad_file(file, expected, fmt::format("data goes on after the last sample, for {} bytes", file_bytes - expected));
  return index;
}

Shards::Shards(const std::vector<std::filesystem::path>& files, ImageOptions options) : options_(options), first_{0} {
  for (const auto& path : files) {
    InputFile file(path);
    std::uint8_t header[shard_header] = {};
    file.read_at(0, header, std::min<std::uint64_t>(sizeof header, file.size()));
    // The index's own size comes from the header, but never more is read than the file has.
    const std::uint64_t promised = shard_header + shard_entry * little<std::uint32_t>(header + 12);
    Bytes head(std::min(promised, file.size()));
    file.read_at(0, head.data(), head.size());
    ShardIndex index = parse_shard(head, file.size(), file.name());
    if (classes_ == 0) classes_ = static_cast<int>(index.classes);
    if (classes_ != static_cast<int>(index.classes)) throw bad_file(file.name(), 8, fmt::format("{} classes, the first shard has {}", index.classes, classes_));
    first_.push_back(first_.back() + static_cast<std::int64_t>(index.entries.size()));
    files_.push_back(std::move(file));
    indexes_.push_back(std::move(index));
  }
  if (files_.empty()) throw usage_error("open shards", "no files given");
}

std::int64_t Shards::read(std::int64_t index, std::uint8_t* pixels) const {
  thread_local Bytes bytes;
  const auto shard = static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() - 1);
  const auto& entries = indexes_[shard].entries;
  const auto inside = static_cast<std::size_t>(index - first_[shard]);
  const ShardEntry& entry = entries[inside];
  // One request for the whole run that this sample lies in: its neighbours are wanted next.
  const std::int64_t run = index / read_ahead;
  if (asked_.exchange(run, std::memory_order_relaxed) != run) {
    const auto begin = static_cast<std::size_t>(std::max(run * read_ahead, first_[shard]) - first_[shard]);
    const std::size_t last = std::min(begin + read_ahead, entries.size()) - 1;
    files_[shard].will_need(entries[begin].offset, entries[last].offset + entries[last].bytes - entries[begin].offset);
  }
  bytes.resize(entry.bytes);
  files_[shard].read_at(entry.offset, bytes.data(), bytes.size());
  const std::string name = fmt::format("{} (sample {})", files_[shard].name(), inside);
  if (crc32(0, bytes.data(), static_cast<uInt>(bytes.size())) != entry.crc)
    throw bad_file(name, entry.offset, "the checksum of this sample does not match", "the file is damaged: write it again");
  decode_and_resize(bytes, name, options_, pixels);
  return entry.label;
}

std::string Shards::describe() const {
  return fmt::format("{} shard file(s) from {}: {}", files_.size(), std::filesystem::path(files_.front().name()).parent_path().string(), size_line(*this));
}

}  // namespace manyranks
