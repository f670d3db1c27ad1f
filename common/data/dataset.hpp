// A data set: samples by index, all of one shape, size known before the first is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace manyranks {

struct ImageShape {
  int channels = 0, height = 0, width = 0;
  std::size_t values() const { return static_cast<std::size_t>(channels) * height * width; }
  bool operator==(const ImageShape&) const = default;
};

enum class Split { train, test };

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual int classes() const = 0;
  virtual ImageShape shape() const = 0;

  // Writes shape().values() bytes to `pixels`: rows, then columns, then channels (HWC), as decoders and screens have
  // them. Returns the label, 0 .. classes()-1. Safe to call from many threads. A bad file throws data_error.
  virtual std::int64_t read(std::int64_t index, std::uint8_t* pixels) const = 0;

  virtual std::string name() const = 0;      // one word for CSV: "mnist", "digits"
  virtual std::string describe() const = 0;  // one line for people: what was found where, how many, of which shape
};

// "60000 samples, 1x28x28, 10 classes": the tail of every describe().
std::string size_line(const Dataset& dataset);
const char* split_name(Split split);

}  // namespace manyranks
