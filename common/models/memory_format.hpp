// The channels of a pixel side by side (NHWC) instead of one plane per channel (NCHW).
#pragma once

#include "launch/torch.hpp"

namespace manyranks {

// Convolution weights (out, in, k, k) with the channels of one tap side by side, as images in NHWC have them.
void to_channels_last(torch::nn::Module& module);

}  // namespace manyranks
