#include "measure/tensorboard.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

// Castagnoli's polynomial, bits reversed; one byte at a time is fast enough for a few hundred bytes a step.
constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78U : 0U);
    table[i] = value;
  }
  return table;
}

template <class T>
void append_raw(std::string& out, T value) {  // little-endian, as every machine that we build for
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// Protocol buffers: a field is its number and wire type in one varint, then the value.
enum WireType : uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_key(std::string& out, uint32_t field, WireType type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, uint32_t field, std::string_view value) {
  append_key(out, field, bytes);
  append_varint(out, value.size());
  out += value;
}

// Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
std::string event_at(double wall_time_s) {
  std::string event;
  append_key(event, 1, fixed64);
  append_raw(event, wall_time_s);
  return event;
}

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string file_name() {
  static std::atomic<int> number = 0;
  char host[256] = "unknown";
  ::gethostname(host, sizeof(host) - 1);
  return "events.out.tfevents." + std::to_string(static_cast<int64_t>(now_s())) + "." + host + "." + std::to_string(::getpid()) + "." +
         std::to_string(number++);
}

}  // namespace

uint32_t crc32c(std::string_view text) {
  static constexpr std::array<uint32_t, 256> table = make_crc_table();
  uint32_t value = ~0U;
  for (const char c : text) value = (value >> 8) ^ table[(value ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~value;
}

// Masked, because a crc over data that itself holds crcs is a weak one.
uint32_t masked_crc32c(std::string_view text) {
  const uint32_t crc = crc32c(text);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

// Summary { repeated Value value = 1; }  Value { string tag = 1; float simple_value = 2; }
std::string scalar_event(std::string_view tag, float value, int64_t step, double wall_time_s) {
  std::string entry;
  append_bytes(entry, 1, tag);
  append_key(entry, 2, fixed32);
  append_raw(entry, value);
  std::string summary;
  append_bytes(summary, 1, entry);
  std::string event = event_at(wall_time_s);
  append_key(event, 2, varint);
  append_varint(event, static_cast<uint64_t>(step));
  append_bytes(event, 5, summary);
  return event;
}

EventWriter::EventWriter(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  path_ = std::filesystem::path(folder) / file_name();
  file_.open(path_, std::ios::binary);
  if (!file_) throw io_error("tensorboard " + path_, error ? error.message() : std::strerror(errno));
  std::string first = event_at(now_s());
  append_bytes(first, 3, "brain.Event:2");
  write_record(first);
  flush();
}

void EventWriter::scalar(std::string_view tag, double value, int64_t step) { scalar(tag, value, step, now_s()); }

void EventWriter::scalar(std::string_view tag, double value, int64_t step, double wall_time_s) {
  write_record(scalar_event(tag, static_cast<float>(value), step, wall_time_s));
  if (++unflushed_ >= 100) flush();
}

void EventWriter::flush() {
  unflushed_ = 0;
  if (!file_.flush()) throw io_error("tensorboard " + path_, "writing failed", "free space and quota");
}

void EventWriter::write_record(const std::string& event) {
  std::string record;
  append_raw(record, static_cast<uint64_t>(event.size()));
  append_raw(record, masked_crc32c(record));
  record += event;
  append_raw(record, masked_crc32c(event));
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
}

}  // namespace manyranks
