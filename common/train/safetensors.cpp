#include "train/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "launch/errors.hpp"

namespace manyranks::safetensors {
namespace {

using nlohmann::json;

constexpr uint64_t prefix_bytes = 8;

[[noreturn]] void bad(const std::string& file, uint64_t offset, const std::string& cause) {
  throw data_error("safetensors " + file, fmt::format("{} (at offset {})", cause, offset));
}

// Names come from the file: shown without control characters, and not at any length.
std::string shown(const std::string& name) {
  std::string text = "'";
  for (const char c : std::string_view(name).substr(0, 80)) text += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return text + (name.size() > 80 ? "...'" : "'");
}

// Parses with a watch on what the document tree would not show: a key given twice, and nesting or lists that only serve to
// fill memory.
json parse_json(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  std::vector<size_t> lengths;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > 3) bad(file, prefix_bytes, "the header is nested too deeply");
    switch (event) {
      case json::parse_event_t::object_start: keys.emplace_back(); break;
      case json::parse_event_t::object_end: keys.pop_back(); break;
      case json::parse_event_t::array_start: lengths.push_back(0); break;
      case json::parse_event_t::array_end: lengths.pop_back(); break;
      case json::parse_event_t::key: {
        const auto& name = value.get_ref<const std::string&>();
        if (!keys.back().insert(name).second) bad(file, prefix_bytes, "the header has " + shown(name) + " twice");
        break;
      }
      case json::parse_event_t::value:
        if (!lengths.empty() && ++lengths.back() > max_dimensions) bad(file, prefix_bytes, "a list in the header is too long");
        break;
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::parse_error& error) {
    bad(file, prefix_bytes + (error.byte > 0 ? error.byte - 1 : 0), "the header is not JSON");
  } catch (const json::exception&) {  // a number that no type holds
    bad(file, prefix_bytes, "the header has a number out of range");
  }
}

uint64_t whole_number(const json& value, const std::string& file, const std::string& where) {
  if (!value.is_number_unsigned()) bad(file, prefix_bytes, where + " must be a whole number, not negative");
  return value.get<uint64_t>();
}

const json& member(const json& object, const char* key, const std::string& file, const std::string& tensor) {
  const auto found = object.find(key);
  if (found == object.end()) bad(file, prefix_bytes, tensor + " has no " + key);
  return *found;
}

Entry parse_entry(const std::string& name, const json& value, const std::string& file) {
  const std::string tensor = "tensor " + shown(name);
  if (!value.is_object()) bad(file, prefix_bytes, tensor + " is not described by an object");
  if (value.size() > 3) bad(file, prefix_bytes, tensor + " has more than dtype, shape and data_offsets");
  Entry entry;
  entry.name = name;
  const json& dtype = member(value, "dtype", file, tensor);
  if (!dtype.is_string() || dtype_bytes(dtype.get_ref<const std::string&>()) == 0) {
    bad(file, prefix_bytes, tensor + " has an unknown dtype");
  }
  entry.dtype = dtype.get<std::string>();

  const json& shape = member(value, "shape", file, tensor);
  if (!shape.is_array()) bad(file, prefix_bytes, "the shape of " + tensor + " is not a list");
  uint64_t bytes = dtype_bytes(entry.dtype);
  for (const json& size : shape) {
    const uint64_t length = whole_number(size, file, "the shape of " + tensor);
    if (length > INT64_MAX || __builtin_mul_overflow(bytes, length, &bytes)) {
      bad(file, prefix_bytes, "the shape of " + tensor + " overflows");
    }
    entry.shape.push_back(static_cast<int64_t>(length));
  }

  const json& offsets = member(value, "data_offsets", file, tensor);
  if (!offsets.is_array() || offsets.size() != 2) bad(file, prefix_bytes, "data_offsets of " + tensor + " must be [begin, end]");
  entry.begin = whole_number(offsets[0], file, "data_offsets of " + tensor);
  entry.end = whole_number(offsets[1], file, "data_offsets of " + tensor);
  if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
    bad(file, prefix_bytes, fmt::format("{} needs {} bytes by dtype and shape, but has [{}, {})", tensor, bytes, entry.begin, entry.end));
  }
  return entry;
}

void check_cover(std::vector<Entry>& entries, uint64_t data_offset, uint64_t file_size, const std::string& file) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t expected = 0;
  const uint64_t data_bytes = file_size - data_offset;
  for (const Entry& entry : entries) {
    // The file's offset for people; `begin` may be any 64-bit number, so it is compared before it is added.
    const uint64_t at = data_offset + std::min(entry.begin, data_bytes);
    if (entry.begin < expected) bad(file, at, "tensor " + shown(entry.name) + " overlaps the one before it");
    if (entry.begin > expected) bad(file, data_offset + expected, "there is a hole before tensor " + shown(entry.name));
    if (entry.end > data_bytes) bad(file, at, "tensor " + shown(entry.name) + " ends behind the end of the file");
    expected = entry.end;
  }
  if (expected != data_bytes) bad(file, data_offset + expected, fmt::format("{} bytes belong to no tensor", data_bytes - expected));
}

}  // namespace

uint64_t dtype_bytes(std::string_view dtype) {
  static const std::map<std::string_view, uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

uint64_t parse_header_length(std::span<const uint8_t> first_bytes, uint64_t file_size, const std::string& file) {
  if (file_size < prefix_bytes || first_bytes.size() < prefix_bytes) {
    bad(file, file_size, fmt::format("{} bytes are too few for a header", file_size));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < prefix_bytes; ++i) length |= static_cast<uint64_t>(first_bytes[i]) << (8 * i);
  if (length > max_header_bytes) bad(file, 0, fmt::format("a header of {} bytes: more than {}", length, max_header_bytes));
  if (length > file_size - prefix_bytes) bad(file, 0, fmt::format("a header of {} bytes in a file of {}", length, file_size));
  return length;
}

Header parse_header(std::string_view text, uint64_t file_size, const std::string& file) {
  Header header;
  header.data_offset = prefix_bytes + text.size();
  const size_t last = text.find_last_not_of(' ');  // writers pad with blanks to align the data
  if (text.empty() || text[0] != '{' || last == std::string_view::npos) bad(file, prefix_bytes, "the header does not begin with {");
  const json document = parse_json(text.substr(0, last + 1), file);
  for (const auto& [name, value] : document.items()) {
    if (name != "__metadata__") {
      header.entries.push_back(parse_entry(name, value, file));
      continue;
    }
    if (!value.is_object()) bad(file, prefix_bytes, "__metadata__ is not an object");
    for (const auto& [key, text_value] : value.items()) {
      if (!text_value.is_string()) bad(file, prefix_bytes, "__metadata__ " + shown(key) + " is not a string");
      header.metadata[key] = text_value.get<std::string>();
    }
  }
  check_cover(header.entries, header.data_offset, file_size, file);
  return header;
}

Header parse(std::span<const uint8_t> bytes, const std::string& file) {
  const uint64_t length = parse_header_length(bytes, bytes.size(), file);
  return parse_header({reinterpret_cast<const char*>(bytes.data()) + prefix_bytes, length}, bytes.size(), file);
}

Reader::Reader(const std::string& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw io_error("safetensors " + path, std::strerror(errno));
  try {
    struct stat info {};
    if (::fstat(descriptor_, &info) != 0) throw io_error("safetensors " + path, std::strerror(errno));
    if (!S_ISREG(info.st_mode)) throw io_error("safetensors " + path, "not a regular file");
    const auto size = static_cast<uint64_t>(info.st_size);
    uint8_t prefix[prefix_bytes] = {};
    read_at(0, prefix, std::min(size, prefix_bytes));
    std::string text(parse_header_length(prefix, size, path), '\0');
    read_at(prefix_bytes, text.data(), text.size());
    header_ = parse_header(text, size, path);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

Reader::~Reader() { ::close(descriptor_); }

const Entry* Reader::find(std::string_view name) const {
  for (const Entry& entry : header_.entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

void Reader::read(const Entry& entry, void* to) const { read_at(header_.data_offset + entry.begin, to, entry.end - entry.begin); }

void Reader::read_at(uint64_t offset, void* to, uint64_t count) const {
  auto* next = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, next, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw io_error("safetensors " + path_, fmt::format("{} (at offset {})", std::strerror(errno), offset));
    if (got == 0) bad(path_, offset, "the file ended while it was read");
    next += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<uint64_t>(got);
  }
}

}  // namespace manyranks::safetensors
