// JPEG by libjpeg-turbo: whole files in memory to RGB pixels, and back. Any damage is an error, never a grey half image.
#pragma once

#include <string>

#include "data/file.hpp"  // Bytes, ByteView

namespace manyranks {

struct Image {  // RGB, HWC
  int width = 0, height = 0;
  Bytes pixels;
};

struct JpegSize {
  int width = 0, height = 0;
};

// Decodes into `out`, whose memory is reused. If `at_least` is given, the DCT is evaluated at 1/8, 1/4 or 1/2 scale,
// the smallest that still covers it in both directions: fewer pixels to make, at the price of a coarser filter.
// Pixels equal Pillow's (same library, same DCT and upsampling) within 1 level. Errors name `file` and the byte.
void decode_jpeg(ByteView bytes, const std::string& file, Image& out, JpegSize at_least = {});

Bytes encode_jpeg(const std::uint8_t* rgb, int width, int height, int quality);

}  // namespace manyranks
