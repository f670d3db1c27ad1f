// JPEG files to normalised batches: our side of rival_loader.py.
//
//   bench_loader make DIR COUNT                              writes COUNT drawn pictures of 500x375 as DIR/train/CLASS/*.jpg
//   bench_loader load DIR SIZE WORKERS BATCH full|reduced    prints "ready N"; for each line on standard input ("end" ends) reads all samples once,
//                                                            and answers with the seconds it took
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>

#include "data/jpeg.hpp"    // encode_jpeg
#include "data/loader.hpp"  // Loader
#include "data/open.hpp"    // open_dataset
#include "data/shapes.hpp"  // Shapes

using namespace manyranks;

namespace {

void make(const std::filesystem::path& dir, int count) {
  constexpr int width = 500, height = 375;  // ImageNet's commonest size
  const Shapes shapes(Split::train, width);
  Bytes pixels(shapes.shape().values());
  for (int i = 0; i < count; ++i) {
    const auto folder = dir / "train" / fmt::format("class_{:02}", shapes.read(i, pixels.data()));
    const Bytes jpeg = encode_jpeg(pixels.data(), width, height, 90);  // the upper three quarters
    std::filesystem::create_directories(folder);
    std::ofstream out(folder / fmt::format("{:06}.jpg", i), std::ios::binary);
    out.write(reinterpret_cast<const char*>(jpeg.data()), static_cast<std::streamsize>(jpeg.size()));
    if (!out.flush()) throw io_error("write " + folder.string(), "the file could not be written");
  }
}

void load(const std::string& dir, int size, int workers, int batch, bool reduced) {
  const std::shared_ptr<const Dataset> data = open_dataset({.dir = dir, .image = {.size = size, .reduced_scale = reduced}});
  LoaderOptions options;
  options.batch = batch, options.workers = workers, options.mean = {0.485F, 0.456F, 0.406F}, options.deviation = {0.229F, 0.224F, 0.225F};
  Loader loader(data, options);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(data->size()));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  std::cout << "ready " << data->size() << std::endl;
  std::int64_t epoch = 0;
  for (std::string line; std::getline(std::cin, line) && line != "end";) {
    const auto start = std::chrono::steady_clock::now();
    loader.start(indices, epoch++, (data->size() + batch - 1) / batch);
    std::int64_t samples = 0;
    while (const Batch* next = loader.next()) samples += next->size;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (samples != data->size()) throw verify_error("load", fmt::format("{} of {} samples", samples, data->size()));
    std::cout << seconds.count() << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 3 && words[0] == "make") return make(words[1], std::atoi(argv[3])), 0;
    if (words.size() == 6 && words[0] == "load") return load(words[1], std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]), words[5] == "reduced"), 0;
    throw usage_error("bench_loader", "wrong arguments", "make DIR COUNT, or load DIR SIZE WORKERS BATCH full|reduced");
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error_line(error, 0, 1, "localhost", -1));
    return static_cast<int>(error.code);
  }
}
