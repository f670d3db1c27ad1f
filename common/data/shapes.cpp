#include "data/shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "data/random.hpp"     // Random
#include "launch/errors.hpp"   // usage_error

namespace manyranks {

namespace {

constexpr std::array<const char*, 10> names = {"disc", "square", "triangle", "pentagon", "star", "cross", "ring", "crescent", "bar", "heart"};

struct Colour {
  float red, green, blue;
};

// Distance from a regular polygon's border, negative inside; `sides` 3, 4, 5, at radius 1.
float polygon(float x, float y, int sides) {
  const float sector = 6.2831853f / static_cast<float>(sides);
  float angle = std::atan2(x, -y);
  angle -= sector * std::round(angle / sector);
  return std::sqrt(x * x + y * y) * std::cos(angle) - std::cos(sector / 2);
}

// Signed distance (exact enough near the border) of a figure of radius about 1; y points down.
float distance(int label, float x, float y) {
  const float r = std::sqrt(x * x + y * y);
  switch (label) {
    case 0: return r - 0.85f;
    case 1: return std::max(std::abs(x), std::abs(y)) - 0.75f;
    case 2: return polygon(x, y, 3);
    case 3: return polygon(x, y, 5);
    case 4: {  // five-pointed star: a pentagon's sector folded into a straight edge from tip to notch
      const float sector = 6.2831853f / 5;
      float angle = std::atan2(x, -y);
      angle = std::abs(angle - sector * std::round(angle / sector));
      const float px = r * std::sin(angle), py = r * std::cos(angle);  // tip at (0, 1), notch at 0.42 (sin 36, cos 36)
      return (px * 0.660f + (py - 1.0f) * 0.247f) / 0.705f;
    }
    case 5: return std::min(std::max(std::abs(x) - 0.28f, std::abs(y) - 0.9f), std::max(std::abs(y) - 0.28f, std::abs(x) - 0.9f));
    case 6: return std::abs(r - 0.7f) - 0.2f;
    case 7: return std::max(r - 0.9f, 0.75f - std::sqrt((x - 0.45f) * (x - 0.45f) + y * y));
    case 8: return std::max(std::abs(x) - 1.0f, std::abs(y) - 0.28f);
    default: {  // heart: two discs and a square stood on its corner
      const float lobe = std::sqrt((std::abs(x) - 0.42f) * (std::abs(x) - 0.42f) + (y + 0.3f) * (y + 0.3f)) - 0.47f;
      const float tip = std::max(std::abs(x) + std::abs(y - 0.0f) - 0.9f, -y - 0.3f);
      return std::min(lobe, tip * 0.7071f);
    }
  }
}

// Two colours mixed by a plain, striped, chequered or waving pattern.
struct Texture {
  Texture(Random& random, Colour base) : colour(base) {
    kind = static_cast<int>(random.below(4));
    auto shade = [&](float value) { return std::clamp(value + static_cast<float>(random.uniform(-0.22, 0.22)), 0.0f, 1.0f); };
    other = {shade(base.red), shade(base.green), shade(base.blue)};
    const double angle = random.uniform(0, 6.2831853), rate = random.uniform(4, 11);
    ux = static_cast<float>(rate * std::cos(angle));
    uy = static_cast<float>(rate * std::sin(angle));
  }
  Colour at(float x, float y) const {
    const float u = ux * x + uy * y, v = ux * y - uy * x;
    float mix = 0;
    if (kind == 1) mix = u - std::floor(u) < 0.5f ? 0.0f : 1.0f;
    if (kind == 2) mix = (u - std::floor(u) < 0.5f) == (v - std::floor(v) < 0.5f) ? 0.0f : 1.0f;
    if (kind == 3) mix = std::abs(u - std::round(u)) + std::abs(v - std::round(v));
    return {colour.red + mix * (other.red - colour.red), colour.green + mix * (other.green - colour.green),
            colour.blue + mix * (other.blue - colour.blue)};
  }
  Colour colour, other;
  int kind;
  float ux, uy;
};

Colour any_colour(Random& random) {
  return {static_cast<float>(random.uniform(0.1, 0.9)), static_cast<float>(random.uniform(0.1, 0.9)), static_cast<float>(random.uniform(0.1, 0.9))};
}

// Far enough from the ground to be seen.
Colour contrasting(Random& random, Colour ground) {
  for (;;) {
    const Colour c = any_colour(random);
    if (std::abs(c.red - ground.red) + std::abs(c.green - ground.green) + std::abs(c.blue - ground.blue) > 0.8f) return c;
  }
}

}  // namespace

Shapes::Shapes(Split split, int side, std::uint64_t seed, std::int64_t size)
    : split_(split), side_(side), seed_(seed), size_(size > 0 ? size : split == Split::train ? train_size : test_size) {
  if (side < 8 || side > 4096) throw usage_error("shapes", fmt::format("a side of {} pixels", side), "use 32 or 224");
}

const char* Shapes::class_name(int label) { return names[static_cast<std::size_t>(label)]; }

std::int64_t Shapes::read(std::int64_t index, std::uint8_t* pixels) const {
  Random random(seed_, split_ == Split::train ? 3 : 4, static_cast<std::uint64_t>(index));
  const int label = static_cast<int>(random.below(10));
  const Colour ground_colour = any_colour(random);
  const Texture ground(random, ground_colour), figure(random, contrasting(random, ground_colour));
  auto real = [&](double low, double high) { return static_cast<float>(random.uniform(low, high)); };
  const float scale = real(0.22, 0.36), angle = real(-0.5, 0.5), stretch = real(0.85, 1.18);  // in parts of the side
  const float centre_x = real(0.36, 0.64), centre_y = real(0.36, 0.64);
  const float cosine = std::cos(angle) / scale, sine = std::sin(angle) / scale;
  const float pixel = 1.0f / (scale * static_cast<float>(side_));  // one pixel in the figure's units: the soft border
  const float grain = real(0.0, 0.06), light_x = real(-0.3, 0.3), light_y = real(-0.3, 0.3);

  for (int row = 0; row < side_; ++row)
    for (int column = 0; column < side_; ++column) {
      const float x = (static_cast<float>(column) + 0.5f) / static_cast<float>(side_), y = (static_cast<float>(row) + 0.5f) / static_cast<float>(side_);
      const float dx = (x - centre_x) * stretch, dy = y - centre_y;
      const float d = distance(label, cosine * dx + sine * dy, cosine * dy - sine * dx);
      const float inside = std::clamp(0.5f - d / pixel, 0.0f, 1.0f);
      Colour c = inside < 1 ? ground.at(x, y) : Colour{0, 0, 0};
      if (inside > 0) {
        const Colour f = figure.at(x, y);
        c = {c.red + inside * (f.red - c.red), c.green + inside * (f.green - c.green), c.blue + inside * (f.blue - c.blue)};
      }
      const float light = 255.0f * (1.0f + light_x * (x - 0.5f) + light_y * (y - 0.5f)), noise = 255.0f * grain * static_cast<float>(random.normal());
      for (const float value : {c.red, c.green, c.blue})
        *pixels++ = static_cast<std::uint8_t>(std::clamp(value * light + noise + 0.5f, 0.0f, 255.0f));
    }
  return label;
}

std::string Shapes::describe() const {
  return fmt::format("shapes ({}, drawn, seed {}): {}", split_name(split_), seed_, size_line(*this));
}

}  // namespace manyranks
