// Which instructions LibTorch uses here: ATen's own word, and a fingerprint of the bits of a matrix product (MKL) and of a convolution
// (oneDNN). With MKL_VERBOSE=1 and ONEDNN_VERBOSE=all those two speak as well. scripts/isa.py reads it.
#include <cstdio>

#include "launch/torch.hpp"

namespace {
unsigned long long fingerprint(const torch::Tensor& tensor) {
  unsigned long long hash = 1469598103934665603ULL;  // FNV-1a over the bytes
  const auto whole = tensor.contiguous();
  const auto* bytes = static_cast<const unsigned char*>(whole.data_ptr());
  for (size_t i = 0; i < whole.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ULL;
  return hash;
}
}  // namespace

int main() {
  torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  std::printf("aten %s\n", at::get_cpu_capability().c_str());
  std::printf("product %016llx\n", fingerprint(torch::randn({67, 301}).mm(torch::randn({301, 53}))));
  std::printf("convolution %016llx\n", fingerprint(torch::conv2d(torch::randn({2, 16, 14, 14}), torch::randn({32, 16, 3, 3}))));
  return 0;
}
