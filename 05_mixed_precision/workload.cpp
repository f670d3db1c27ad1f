#include "workload.hpp"

#include <algorithm>
#include <cmath>

#include "comm/communicator.hpp"
#include "data/open.hpp"             // open_dataset
#include "launch/errors.hpp"
#include "measure/allocator.hpp"     // CountingAllocator, MemoryTag
#include "measure/timer.hpp"         // WallTimer
#include "models/memory_format.hpp"  // to_channels_last
#include "parallel/replicate.hpp"    // check_finite
#include "parallel/scaled_step.hpp"  // ScaledStep
#include "parallel/strategy.hpp"     // make_adam
#include "train/flat_parameters.hpp" // FlatParameters

namespace manyranks {
namespace {

Samples read_all(const Dataset& data, torch::Device device) {
  const ImageShape shape = data.shape();
  auto pixels = torch::empty({data.size(), shape.height, shape.width, shape.channels}, torch::kUInt8);
  auto labels = torch::empty({data.size()}, torch::kLong);
  const auto each = static_cast<int64_t>(shape.values());
  for (int64_t i = 0; i < data.size(); ++i) labels.data_ptr<int64_t>()[i] = data.read(i, pixels.data_ptr<uint8_t>() + i * each);
  const bool dark = shape.channels == 1;  // digits are bright strokes on a dark ground
  const double mean = dark ? 0.2 : 0.5, deviation = dark ? 0.3 : 0.25;
  return {((pixels.permute({0, 3, 1, 2}).to(torch::kFloat).contiguous() / 255 - mean) / deviation).to(device), labels.to(device)};
}

}  // namespace

Images load_images(const std::string& name, const std::string& dir, uint64_t seed, int64_t train, int64_t test, torch::Device device) {
  OpenOptions open;
  open.dir = dir, open.embedded = name, open.seed = seed, open.size = train;
  const auto data = open_dataset(open);
  Images images{data->name(), read_all(*data, device), {}};
  open.split = Split::test, open.size = test;
  if (test > 0) images.test = read_all(*open_dataset(open), device);
  return images;
}

ModelShape Images::shape(const std::string& model) const {
  ModelShape shape = usual_shape(model);
  shape.classes = 10, shape.channels = train.x.size(1), shape.image = train.x.size(2);
  return shape;
}

Samples batch_of(const Samples& samples, int64_t step, int64_t size) {
  const auto index = ((torch::arange(size) + step * size) % samples.y.numel()).to(samples.y.device());
  return {samples.x.index_select(0, index), samples.y.index_select(0, index)};
}

void one_rank_only(const Process& process) {
  if (process.world_size() > 1) throw usage_error(process.options().name(), "this lesson is about one device", "one process; 06_amp_data_parallel takes it to many");
}

double mean_of_last(const std::vector<double>& losses, size_t count) {
  count = std::min(count, losses.size());
  double sum = 0;
  for (size_t i = losses.size() - count; i < losses.size(); ++i) sum += losses[i];
  return sum / static_cast<double>(count);
}

Outcome train(Communicator& world, const Images& images, const Recipe& recipe, torch::Device device) {
  auto& memory = CountingAllocator::get();
  const int64_t live_before = memory.live_bytes();
  memory.reset_peak();
  torch::manual_seed(recipe.seed);
  ModelShape shape = images.shape(recipe.model);
  if (recipe.width > 0) shape.width = recipe.width;
  auto model = make_model(recipe.model, shape);
  model->to(device);
  if (recipe.channels_last) to_channels_last(*model);
  model->train();
  FlatParameters flat(*model);
  ScaledStep scaled(world, recipe.amp);
  const auto optimizer = scaled.wrap(make_adam())(flat.parameters(), flat.gradients());
  const auto layout = [&](const torch::Tensor& x) { return recipe.channels_last ? x.contiguous(torch::MemoryFormat::ChannelsLast) : x; };
  Outcome outcome;
  for (int64_t step = 0; step < recipe.steps; ++step) {
    const auto [x, y] = batch_of(images.train, step, recipe.batch);
    const auto input = layout(x);
    const WallTimer timer;
    flat.zero_grad();
    torch::Tensor loss;
    {
      const MemoryTag tag(Tag::activations, "activations");
      const int64_t before = memory.live_bytes(Tag::activations);
      {
        const Autocast autocast(recipe.amp, device.type());
        loss = cross_entropy(model->forward(input), y);
      }
      outcome.activation_bytes = memory.live_bytes(Tag::activations) - before;
      check_finite(loss);
      scaled.scale(loss).backward();
    }
    optimizer->step(recipe.rate * 0.5 * (1 + std::cos(3.14159265358979 * static_cast<double>(step) / static_cast<double>(recipe.steps))));
    outcome.losses.push_back(loss.item<double>());  // on a GPU it waits for the step
    outcome.seconds.push_back(timer.seconds());
  }
  outcome.skipped = scaled.scaler().skipped();
  outcome.peak_bytes = memory.peak_bytes() - live_before;

  const torch::NoGradGuard no_grad;
  model->eval();
  int64_t right = 0;
  const int64_t count = images.test.y.defined() ? images.test.y.numel() : 0;
  for (int64_t from = 0; from < count; from += 500) {
    const int64_t n = std::min<int64_t>(500, count - from);
    const Autocast autocast(recipe.amp, device.type());
    right += (model->forward(layout(images.test.x.narrow(0, from, n))).argmax(1) == images.test.y.narrow(0, from, n)).sum().item<int64_t>();
  }
  outcome.accuracy = count ? static_cast<double>(right) / static_cast<double>(count) : 0;
  return outcome;
}

}  // namespace manyranks
