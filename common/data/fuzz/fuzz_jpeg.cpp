// Any bytes as a JPEG file: decoded in full and at reduced scale and resized, or a data_error.
#include <cstdlib>

#include "data/jpeg.hpp"
#include "data/resize.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace manyranks;
  static Image image;
  for (const JpegSize at_least : {JpegSize{}, JpegSize{8, 8}}) {
    try {
      decode_jpeg({bytes, size}, "fuzz", image, at_least);
      if (image.pixels.size() != std::size_t{3} * image.width * image.height) std::abort();
      std::uint8_t out[3 * 24 * 24];
      resize_bilinear(image.pixels.data(), centre_crop(image.width, image.height, 3, 24), out);
      resize_bilinear(image.pixels.data(), stretch(image.width, image.height, 3, 24), out);
    } catch (const Error& error) {
      if (error.code != Exit::data) std::abort();
    }
  }
  return 0;
}
