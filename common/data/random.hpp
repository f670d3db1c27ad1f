// Random numbers that are a function of their key: (seed, epoch, index) gives the same draws on every thread, rank and run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace manyranks {

// SplitMix64 over a hashed key. Small, fast, and with no state to share; <random>'s distributions differ between
// standard libraries, so the few that we need are here.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t a = 0, std::uint64_t b = 0)
      : state_(mix(mix(mix(seed + golden) + a * 2 + 1) + b * 2 + 1)) {}

  std::uint64_t bits() { return mix(state_ += golden); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }  // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  bool chance(double probability) { return uniform() < probability; }

  // 0 .. n-1. The multiply-shift bias is below 2^-32 for every n that a data set can have.
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits()) * n) >> 64);
  }

  // Sum of four 16-bit uniforms, scaled to unit variance: bounded at 3.46 sigma, one draw, and no libm call whose last
  // bit may differ between machines.
  double normal() {
    const std::uint64_t draw = bits();
    const auto sum = static_cast<double>((draw & 0xffff) + (draw >> 16 & 0xffff) + (draw >> 32 & 0xffff) + (draw >> 48));
    return (sum - 2.0 * 65535.0) * (1.7320508075688772 / 65535.0);
  }

  template <typename T>
  void shuffle(T* values, std::size_t count) {
    for (std::size_t i = count; i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  static constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ULL;
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

}  // namespace manyranks
