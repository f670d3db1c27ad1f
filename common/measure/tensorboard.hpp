// Scalars for TensorBoard: event files written by hand, with neither protobuf nor TensorFlow.
//
//   EventWriter events("runs/a");
//   events.scalar("loss", loss, step);
//
// A file is a row of records: length (uint64), masked crc32c of it, an Event message, masked crc32c of that; all little-endian.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace manyranks {

class EventWriter {
 public:
  // Makes the folder and in it events.out.tfevents.SECONDS.HOST.PID.NUMBER. Let one rank write, or give each a folder.
  explicit EventWriter(const std::string& folder);
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  void scalar(std::string_view tag, double value, int64_t step);  // stored as float, as TensorBoard has it
  void scalar(std::string_view tag, double value, int64_t step, double wall_time_s);
  void flush();  // also every 100 records, and at the end

  const std::string& path() const { return path_; }

 private:
  void write_record(const std::string& event);

  std::string path_;
  std::ofstream file_;
  int unflushed_ = 0;
};

// The parts, for the tests.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);
std::string scalar_event(std::string_view tag, float value, int64_t step, double wall_time_s);

}  // namespace manyranks
