// Antialiased bilinear resize: a triangle filter as wide as the shrink factor, the one Pillow calls BILINEAR.
#pragma once

#include <cstdint>

namespace manyranks {

// The source is (height, width, channels), channels <= 4. It is resized to full_width x full_height, of which only the
// part out_width x out_height at (left, top) is computed and written: resize and centre crop in one pass.
struct Resize {
  int width = 0, height = 0, channels = 0;
  int full_width = 0, full_height = 0;
  int left = 0, top = 0, out_width = 0, out_height = 0;
};

void resize_bilinear(const std::uint8_t* source, const Resize& plan, std::uint8_t* out);

// The shorter side to `size`, then the centre size x size: torchvision's Resize(size) and CenterCrop(size).
Resize centre_crop(int width, int height, int channels, int size);
// Both sides to `size`, whatever the aspect.
Resize stretch(int width, int height, int channels, int size);

}  // namespace manyranks
