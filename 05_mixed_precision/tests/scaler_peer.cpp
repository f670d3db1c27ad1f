// Training with our loss scaler, for scaler_python.py to follow step by step: prints scale, skip, parameters and velocities as bits. No LibTorch.
//   scaler_peer STEPS INITIAL GROWTH BACKOFF INTERVAL [STEP:ELEMENT:VALUE ...]     VALUE: the gradient that is injected there, "inf" or "nan"
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "formats.hpp"
#include "kernels/guarded.hpp"
#include "kernels/kernels.hpp"
#include "train/grad_scaler.hpp"

using namespace manyranks;

int main(int argc, char** argv) {
  if (argc < 6) return 64;
  const long steps = std::atol(argv[1]);
  GradScaler scaler({std::strtof(argv[2], nullptr), std::atof(argv[3]), std::atof(argv[4]), std::atol(argv[5])});
  std::multimap<long, std::pair<size_t, float>> injected;
  for (int i = 6; i < argc; ++i) {
    char *at = argv[i], *end = nullptr;
    const long step = std::strtol(at, &end, 10);
    const auto element = static_cast<size_t>(std::strtol(end + 1, &end, 10));
    injected.insert({step, {element, std::strtof(end + 1, nullptr)}});
  }

  // Parabolas of very different steepness: some gradients underflow in half precision, some overflow as the scale grows.
  constexpr size_t count = 37;
  std::vector<float> parameter(count), target(count), steepness(count), velocity(count, 0.0F), gradient(count);
  for (size_t i = 0; i < count; ++i) {
    parameter[i] = 1.0F + 0.125F * static_cast<float>(i % 5);
    target[i] = 0.3F * static_cast<float>(i % 7) - 1.0F;
    steepness[i] = std::ldexp(1.0F + 0.01F * static_cast<float>(i), -static_cast<int>(i % 20));
  }
  const kernels::Sgd sgd{0.05F, 0.9F, 1e-3F, 1.0F};
  for (long step = 0; step < steps; ++step) {
    for (size_t i = 0; i < count; ++i) {
      const float difference = parameter[i] - target[i], slope = difference * steepness[i];
      gradient[i] = round_to(slope * scaler.scale(), fp16);
    }
    for (auto [at, end] = injected.equal_range(step); at != end; ++at) gradient[at->second.first] = at->second.second;
    const double norm = kernels::cpu::sum_of_squares(gradient.data(), count);
    const float scale = scaler.scale();
    kernels::cpu::guarded_sgd({sgd, {.inverse_scale = scaler.inverse()}}, &norm, parameter.data(), gradient.data(), velocity.data(), count);
    scaler.update(!kernels::Guard::accepts(norm));
    std::printf("%ld %08x %d", step, std::bit_cast<uint32_t>(scale), kernels::Guard::accepts(norm) ? 0 : 1);
    for (const auto* values : {&parameter, &velocity})
      for (const float value : *values) std::printf(" %08x", std::bit_cast<uint32_t>(value));
    std::printf("\n");
  }
}
