// How a digit is drawn: one of several ways to write it (pen strokes through a few points), each point moved a little,
// a smooth curve through them, an affine map (size, slant, rotation, place), a wave that bends the paper (elastic), a
// pen of varying width, then scribbles of other writing and grain. Place and scribbles are what keep it hard: a linear
// model needs each stroke where it expects it, a convnet does not.
#include "data/digits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "data/random.hpp"  // Random

namespace manyranks {

namespace {

constexpr int side = 28;

struct Point {
  float x, y;
};
using Stroke = std::vector<Point>;
using Glyph = std::vector<Stroke>;

// Points in a box of x 0..1 (right), y 0..1 (down); a curve passes through all points of a stroke.
// A point given twice makes a corner.
const std::array<std::vector<Glyph>, 10>& glyphs() {
  static const std::array<std::vector<Glyph>, 10> all = {{
      {{{{.5f, .02f}, {.2f, .18f}, {.1f, .5f}, {.22f, .85f}, {.5f, .98f}, {.8f, .83f}, {.9f, .5f}, {.78f, .16f}, {.5f, .02f}}},
       {{{.6f, .05f}, {.32f, .1f}, {.18f, .45f}, {.25f, .85f}, {.5f, .95f}, {.75f, .75f}, {.82f, .4f}, {.72f, .1f}, {.45f, .08f}}},
       {{{.35f, .1f}, {.1f, .4f}, {.2f, .85f}, {.55f, .95f}, {.88f, .65f}, {.85f, .25f}, {.6f, .05f}, {.3f, .12f}}}},
      {{{{.5f, .02f}, {.5f, .5f}, {.5f, .98f}}},
       {{{.3f, .22f}, {.54f, .02f}, {.54f, .02f}, {.52f, .5f}, {.5f, .98f}}},
       {{{.3f, .2f}, {.5f, .03f}, {.5f, .03f}, {.5f, .97f}}, {{.25f, .97f}, {.75f, .97f}}}},
      {{{{.15f, .25f}, {.35f, .05f}, {.7f, .08f}, {.8f, .32f}, {.55f, .62f}, {.12f, .96f}, {.12f, .96f}, {.5f, .95f}, {.9f, .95f}}},
       {{{.18f, .22f}, {.45f, .03f}, {.78f, .2f}, {.68f, .52f}, {.35f, .85f}, {.18f, .9f}, {.25f, .76f}, {.5f, .88f}, {.9f, .92f}}},
       {{{.2f, .1f}, {.6f, .04f}, {.78f, .28f}, {.5f, .6f}, {.15f, .95f}, {.15f, .95f}, {.85f, .97f}}}},
      {{{{.18f, .12f}, {.5f, .02f}, {.78f, .2f}, {.65f, .42f}, {.4f, .48f}, {.7f, .55f}, {.85f, .76f}, {.55f, .97f}, {.15f, .88f}}},
       {{{.15f, .05f}, {.8f, .05f}, {.8f, .05f}, {.45f, .4f}, {.45f, .4f}, {.8f, .55f}, {.78f, .85f}, {.45f, .98f}, {.15f, .85f}}},
       {{{.2f, .2f}, {.45f, .03f}, {.75f, .18f}, {.5f, .46f}, {.5f, .46f}, {.82f, .68f}, {.6f, .96f}, {.18f, .9f}}}},
      {{{{.62f, .02f}, {.35f, .35f}, {.08f, .66f}, {.08f, .66f}, {.92f, .66f}}, {{.66f, .3f}, {.66f, .98f}}},
       {{{.2f, .05f}, {.15f, .5f}, {.15f, .5f}, {.8f, .5f}}, {{.78f, .05f}, {.75f, .5f}, {.72f, .98f}}},
       {{{.7f, .98f}, {.7f, .05f}, {.7f, .05f}, {.1f, .62f}, {.1f, .62f}, {.92f, .64f}}}},
      {{{{.8f, .05f}, {.25f, .05f}, {.25f, .05f}, {.2f, .42f}, {.2f, .42f}, {.55f, .38f}, {.85f, .62f}, {.65f, .93f}, {.15f, .92f}}},
       {{{.25f, .08f}, {.2f, .45f}, {.2f, .45f}, {.6f, .4f}, {.8f, .68f}, {.5f, .97f}, {.12f, .85f}}, {{.25f, .07f}, {.82f, .04f}}},
       {{{.82f, .08f}, {.4f, .06f}, {.28f, .3f}, {.5f, .48f}, {.78f, .66f}, {.6f, .94f}, {.18f, .88f}}}},
      {{{{.7f, .03f}, {.35f, .25f}, {.15f, .65f}, {.35f, .96f}, {.75f, .9f}, {.82f, .65f}, {.5f, .5f}, {.2f, .68f}}},
       {{{.5f, .02f}, {.22f, .4f}, {.18f, .8f}, {.5f, .98f}, {.8f, .78f}, {.6f, .56f}, {.22f, .72f}}},
       {{{.8f, .12f}, {.5f, .04f}, {.2f, .35f}, {.15f, .75f}, {.5f, .97f}, {.82f, .72f}, {.52f, .5f}, {.18f, .64f}}}},
      {{{{.12f, .05f}, {.88f, .05f}, {.88f, .05f}, {.6f, .5f}, {.4f, .98f}}},
       {{{.12f, .1f}, {.5f, .06f}, {.85f, .08f}, {.85f, .08f}, {.5f, .6f}, {.45f, .98f}}, {{.3f, .52f}, {.78f, .48f}}},
       {{{.15f, .2f}, {.16f, .05f}, {.16f, .05f}, {.84f, .04f}, {.84f, .04f}, {.62f, .45f}, {.5f, .97f}}}},
      {{{{.75f, .15f}, {.45f, .02f}, {.22f, .22f}, {.5f, .46f}, {.8f, .75f}, {.5f, .98f}, {.2f, .76f}, {.5f, .48f}, {.78f, .22f}, {.7f, .1f}}},
       {{{.5f, .48f}, {.22f, .25f}, {.5f, .03f}, {.78f, .25f}, {.5f, .48f}, {.18f, .75f}, {.5f, .97f}, {.82f, .75f}, {.5f, .48f}}},
       {{{.5f, .03f}, {.25f, .2f}, {.5f, .44f}, {.74f, .2f}, {.5f, .03f}}, {{.5f, .44f}, {.16f, .72f}, {.5f, .98f}, {.84f, .72f}, {.5f, .44f}}}},
      {{{{.8f, .3f}, {.5f, .5f}, {.2f, .32f}, {.4f, .05f}, {.75f, .1f}, {.82f, .4f}, {.75f, .7f}, {.6f, .98f}}},
       {{{.75f, .2f}, {.45f, .03f}, {.2f, .25f}, {.42f, .48f}, {.75f, .3f}, {.76f, .15f}, {.76f, .15f}, {.78f, .55f}, {.76f, .98f}}},
       {{{.78f, .28f}, {.5f, .48f}, {.22f, .28f}, {.5f, .04f}, {.78f, .22f}, {.76f, .65f}, {.55f, .95f}, {.2f, .88f}}}},
  }};
  return all;
}

// Catmull-Rom: a smooth curve through all points, 6 pieces between neighbours.
void trace(const Stroke& points, Stroke& curve) {
  constexpr int pieces = 6;
  const int n = static_cast<int>(points.size());
  auto at = [&](int i) { return points[static_cast<std::size_t>(std::clamp(i, 0, n - 1))]; };
  for (int i = 0; i + 1 < n; ++i) {
    const Point a = at(i - 1), b = at(i), c = at(i + 1), d = at(i + 2);
    for (int k = i == 0 ? 0 : 1; k <= pieces; ++k) {
      const float t = static_cast<float>(k) / pieces, t2 = t * t, t3 = t2 * t;
      auto mix = [&](float pa, float pb, float pc, float pd) {
        return 0.5f * (2 * pb + (pc - pa) * t + (2 * pa - 5 * pb + 4 * pc - pd) * t2 + (3 * pb - pa - 3 * pc + pd) * t3);
      };
      curve.push_back({mix(a.x, b.x, c.x, d.x), mix(a.y, b.y, c.y, d.y)});
    }
  }
}

// Ink of one pen stroke from a to b: full inside the radius, fading over one pixel outside it.
void ink_line(float* canvas, Point a, Point b, float radius, float strength) {
  const float reach = radius + 1.0f;
  const int left = std::max(0, static_cast<int>(std::floor(std::min(a.x, b.x) - reach)));
  const int right = std::min(side - 1, static_cast<int>(std::ceil(std::max(a.x, b.x) + reach)));
  const int top = std::max(0, static_cast<int>(std::floor(std::min(a.y, b.y) - reach)));
  const int bottom = std::min(side - 1, static_cast<int>(std::ceil(std::max(a.y, b.y) + reach)));
  const float dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy + 1e-6f;
  for (int y = top; y <= bottom; ++y)
    for (int x = left; x <= right; ++x) {
      const float px = static_cast<float>(x) - a.x, py = static_cast<float>(y) - a.y;
      const float t = std::clamp((px * dx + py * dy) / length2, 0.0f, 1.0f);
      const float ex = px - t * dx, ey = py - t * dy;
      const float ink = strength * std::clamp(radius + 0.5f - std::sqrt(ex * ex + ey * ey), 0.0f, 1.0f);
      float& pixel = canvas[y * side + x];
      pixel = std::max(pixel, ink);
    }
}

struct Difficulty {
  double jitter = 0.035, rotation = 0.3, slant = 0.28, shift = 4.8, wave = 1.0, grain = 0.12;
  int scribbles = 5;
};

// A smooth displacement of at most a pixel or two: one slow wave in each direction.
struct Wave {
  float amplitude_x, amplitude_y, frequency_x, frequency_y, phase_x, phase_y;
  Point operator()(Point p) const {
    return {p.x + amplitude_x * std::sin(frequency_x * p.y + phase_x), p.y + amplitude_y * std::sin(frequency_y * p.x + phase_y)};
  }
};

void draw_digit(float* canvas, int digit, Random& random, const Difficulty& hard) {
  auto real = [&](double low, double high) { return static_cast<float>(random.uniform(low, high)); };
  const auto& styles = glyphs()[static_cast<std::size_t>(digit)];
  const Glyph& glyph = styles[random.below(styles.size())];
  const float height = real(15, 21), width = height * real(0.5, 0.85), angle = real(-hard.rotation, hard.rotation);
  const float slant = real(-hard.slant, hard.slant), cosine = std::cos(angle), sine = std::sin(angle);
  const float centre_x = 13.5f + real(-hard.shift, hard.shift), centre_y = 13.5f + real(-hard.shift, hard.shift);
  const Wave wave{real(0, hard.wave), real(0, hard.wave), real(0.2, 0.45), real(0.2, 0.45), real(0, 6.28), real(0, 6.28)};
  const float radius = real(0.55, 1.45), strength = real(0.65, 1.0);

  Stroke points, curve;
  for (const Stroke& stroke : glyph) {
    points = stroke;
    Point moved{0, 0};
    for (std::size_t i = 0; i < points.size(); ++i) {
      const bool corner = i > 0 && stroke[i].x == stroke[i - 1].x && stroke[i].y == stroke[i - 1].y;
      if (!corner) moved = {static_cast<float>(hard.jitter * random.normal()), static_cast<float>(hard.jitter * random.normal())};
      points[i] = {points[i].x + moved.x, points[i].y + moved.y};
    }
    curve.clear();
    trace(points, curve);
    for (Point& p : curve) {
      const float x = (p.x - 0.5f) * width - slant * (p.y - 0.5f) * height, y = (p.y - 0.5f) * height;
      p = wave({centre_x + cosine * x - sine * y, centre_y + sine * x + cosine * y});
    }
    const float press = real(-0.3, 0.3);  // the pen grows or shrinks along the stroke
    for (std::size_t i = 0; i + 1 < curve.size(); ++i) {
      const float along = static_cast<float>(i) / static_cast<float>(curve.size());
      ink_line(canvas, curve[i], curve[i + 1], radius * (1.0f + press * (along - 0.5f)), strength);
    }
  }
}

// Pieces of other writing: short bent strokes, mostly near the border.
void draw_scribbles(float* canvas, Random& random, int most) {
  auto real = [&](double low, double high) { return static_cast<float>(random.uniform(low, high)); };
  for (auto count = random.below(static_cast<std::uint64_t>(most) + 1); count > 0; --count) {
    const float angle = real(0, 6.283), distance = real(9, 16);
    const Point start{13.5f + distance * std::cos(angle), 13.5f + distance * std::sin(angle)};
    const float turn = real(0, 6.283), length = real(2, 7), bend = real(-2, 2);
    const Point end{start.x + length * std::cos(turn), start.y + length * std::sin(turn)};
    const Point middle{(start.x + end.x) / 2 - bend * std::sin(turn), (start.y + end.y) / 2 + bend * std::cos(turn)};
    const float radius = real(0.4, 1.1), strength = real(0.4, 0.9);
    ink_line(canvas, start, middle, radius, strength);
    ink_line(canvas, middle, end, radius, strength);
  }
}

}  // namespace

Digits::Digits(Split split, std::uint64_t seed, std::int64_t size)
    : split_(split), seed_(seed), size_(size > 0 ? size : split == Split::train ? train_size : test_size) {}

std::int64_t Digits::read(std::int64_t index, std::uint8_t* pixels) const {
  const Difficulty hard;
  Random random(seed_, split_ == Split::train ? 1 : 2, static_cast<std::uint64_t>(index));
  const int digit = static_cast<int>(random.below(10));
  std::array<float, side * side> canvas{};
  draw_digit(canvas.data(), digit, random, hard);
  draw_scribbles(canvas.data(), random, hard.scribbles);
  for (std::size_t i = 0; i < canvas.size(); ++i) {
    const double noisy = 255.0 * (static_cast<double>(canvas[i]) + hard.grain * random.normal());
    pixels[i] = static_cast<std::uint8_t>(std::clamp(noisy + 0.5, 0.0, 255.0));
  }
  return digit;
}

std::string Digits::describe() const {
  return fmt::format("digits ({}, drawn, seed {}): {}", split_name(split_), seed_, size_line(*this));
}

}  // namespace manyranks
