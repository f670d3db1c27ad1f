// Opens a folder as --data does and tells what is in it, for tests in Python: what was recognised, then a line per sample.
//   data_probe DIR train|test SIZE crop|stretch [RAW]     RAW: all pixels, end to end, go to this file
#include <fmt/format.h>
#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "data/open.hpp"  // open_dataset

using namespace manyranks;

int main(int argc, char** argv) {
  if (argc < 5) {
    fmt::print(stderr, "usage: data_probe DIR train|test SIZE crop|stretch [RAW]\n");
    return static_cast<int>(Exit::usage);
  }
  try {
    const ImageOptions image{.size = std::atoi(argv[3]), .stretch = std::string(argv[4]) == "stretch"};
    const auto data = open_dataset({.dir = argv[1], .split = std::string(argv[2]) == "test" ? Split::test : Split::train, .image = image});
    fmt::print("{}\n", data->describe());
    std::ofstream raw;
    if (argc > 5) raw.open(argv[5], std::ios::binary);
    std::vector<std::uint8_t> pixels(data->shape().values());
    for (std::int64_t i = 0; i < data->size(); ++i) {
      const auto label = data->read(i, pixels.data());
      fmt::print("{} {} {:08x}\n", i, label, crc32(0, pixels.data(), static_cast<uInt>(pixels.size())));
      if (argc > 5) raw.write(reinterpret_cast<const char*>(pixels.data()), static_cast<std::streamsize>(pixels.size()));
    }
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error_line(error, 0, 1, "localhost", -1));
    return static_cast<int>(error.code);
  }
  return 0;
}
