// The C++ half of tensorboard_python.py: two scalars over 250 steps into the folder given.
#include <cmath>
#include <limits>

#include "measure/tensorboard.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  manyranks::EventWriter events(argv[1]);
  for (int step = 0; step < 250; ++step) {
    events.scalar("train/loss", 2.0 / (1 + step), step, 1.7e9 + step);
    if (step % 50 == 0) events.scalar("rate \xC3\xA9", 0.1 * step, step, 1.7e9 + step);
  }
  events.scalar("train/loss", std::numeric_limits<double>::quiet_NaN(), 5'000'000'000, 1.8e9);
}
