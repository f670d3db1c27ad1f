#include "workload.hpp"

#include <sys/resource.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "data/open.hpp"           // open_dataset
#include "data/shapes.hpp"         // Shapes
#include "measure/provenance.hpp"  // fill, write_row
#include "measure/statistics.hpp"  // median, quantile
#include "measure/table.hpp"       // Table
#include "measure/verify.hpp"      // expect_equal_bits, expect_close
#include "parallel/replicate.hpp"  // check_finite

#if defined(MANYRANKS_HAVE_CUDA)
#include <ATen/cuda/CUDAContext.h>
#endif

namespace manyranks {
namespace fs = std::filesystem;
namespace {

// The default data set: photographs' stand-ins of 224x224 pixels, drawn and written as JPEG files on first use. Made
// under another name and then renamed, so that a folder of this name is always whole.
fs::path image_folder(std::uint64_t seed, std::int64_t count) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const fs::path base = cache && *cache ? fs::path(cache) : home && *home ? fs::path(home) / ".cache" : fs::temp_directory_path();
  const fs::path folder = base / "manyranks" / fmt::format("shapes224-seed{}-{}", seed, count);
  if (fs::is_directory(folder)) return folder;
  const fs::path unfinished = fmt::format("{}.{}", folder.string(), getpid());
  write_image_folder(Shapes(Split::train, 224, seed, count), unfinished / "train", count);
  std::error_code code;
  fs::rename(unfinished, folder, code);
  if (code) fs::remove_all(unfinished);  // another process was first, or it cannot be: open_dataset() will say
  return folder;
}

// NVML does not know CUDA_VISIBLE_DEVICES: name the GPU by its place on the bus.
std::string monitored_gpu(const torch::Device& device) {
#if defined(MANYRANKS_HAVE_CUDA)
  if (device.is_cuda()) {
    const auto* gpu = at::cuda::getDeviceProperties(device.index());
    return fmt::format("{:08x}:{:02x}:{:02x}.0", gpu->pciDomainID, gpu->pciBusID, gpu->pciDeviceID);
  }
#endif
  return device.is_cuda() ? "0" : "";
}

// Logical order, whatever the layout in memory: a weight in NHWC compares with its twin in NCHW.
torch::Tensor as_one_row(const Model& model, bool gradients) {
  std::vector<torch::Tensor> rows;
  for (const auto& parameter : model.parameters())
    rows.push_back((gradients ? parameter.grad() : parameter.detach()).reshape({-1}).to(torch::kCPU, torch::kDouble));
  return torch::cat(rows);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

Batches::Batches(std::shared_ptr<const Dataset> data, const LoaderOptions& options, std::uint64_t seed)
    : data_(std::move(data)), options_(options), sampler_(data_->size(), 0, 1, {seed}) {
  if (data_->size() < options.batch)
    throw usage_error("--batch", fmt::format("{} samples do not fill one batch of {}", data_->size(), options.batch));
}

TensorBatch Batches::next() {
  const WallTimer timer;
  for (;;) {
    if (!loader_) loader_.emplace(data_, options_), sampler_.start_epoch(epoch_++), loader_->start(sampler_);
    const auto batch = loader_->next();
    if (batch && batch->labels.size(0) == options_.batch) {
      waited_s_ += timer.seconds();
      return *batch;
    }
    sampler_.start_epoch(epoch_++);
    loader_->start(sampler_);
  }
}

void Batches::pause() {
  finish_device_work();  // a copy from the loader's buffers may still be under way
  loader_.reset();
}

Workload::Workload(Options& options) : options_(options) {
  options.add("--model", kind, "what to train").one_of({"mlp", "convnet", "resnet18", "resnet50", "vgg11"});
  options.add("--image", image_, "pixels a side that the model sees").between(8, 1024);
  options.add("--monitor", monitor_file_, "write device utilisation, memory and power to this CSV file");
  options.add("--tensorboard", tensorboard_, "write event files to this folder");
}

void Workload::open(Process& process) {
  process_ = &process;
  if (process.world_size() > 1) throw usage_error(options_.name(), "this chapter is about one device", "one process; chapter 03 takes the same loop to many");
  OpenOptions open;
  open.dir = options_.data.empty() ? image_folder(options_.seed, options_.quick ? 32 : 512).string() : options_.data;
  open.image.size = image_;
  data_ = open_dataset(open);
  fmt::print("  {}\n", options_.data.empty() ? fmt::format("ImageFolder of JPEG, 224x224, drawn (seed {}): {}", options_.seed, size_line(*data_)) : data_->describe());
  if (!tensorboard_.empty()) events_ = std::make_unique<EventWriter>(tensorboard_);
  if (!monitor_file_.empty()) monitor_ = std::make_unique<DeviceMonitor>(0.1, standard_probes(monitored_gpu(device())));
}

void Workload::close() {
  if (!monitor_) return;
  monitor_->stop();
  monitor_->write_csv(monitor_file_);
  fmt::print("  monitor: {}\n", monitor_->summary());
}

std::shared_ptr<Model> Workload::make() const {
  ModelShape shape = usual_shape(kind);
  const ImageShape image = data_->shape();
  shape.classes = data_->classes(), shape.channels = image.channels, shape.image = image.height;
  if (options_.quick && kind == "convnet") shape.width = 8;
  torch::manual_seed(options_.seed);
  auto model = make_model(kind, shape);
  model->to(device());
  model->train();
  return model;
}

LoaderOptions Workload::loading() const {
  LoaderOptions loading;
  loading.batch = batch(), loading.workers = 0, loading.mean = {0.5F}, loading.deviation = {0.25F};
  loading.augment = {.padding = data_->shape().height / 8, .flip = true, .seed = options_.seed};
  return loading;
}

Batches Workload::batches(const LoaderOptions& loading) const { return Batches(data_, loading, options_.seed); }

void Workload::log(const std::string& tag, double value, std::int64_t step) {
  if (events_) events_->scalar(tag, value, step);
}

Reference train_plainly(const Workload& workload, std::int64_t steps, std::int64_t batch) {
  LoaderOptions loading = workload.loading();
  if (batch > 0) loading.batch = batch;
  Batches batches = workload.batches(loading);
  auto model = workload.make();
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(workload.learning_rate()));
  Reference reference{{}, as_one_row(*model, false), {}};
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto [images, labels] = batches.next();
    optimizer.zero_grad();
    const auto loss = cross_entropy(model->forward(images.to(workload.device())), labels.to(workload.device()));
    check_finite(loss);
    loss.backward();
    optimizer.step();
    reference.training.add(loss.item<double>(), *model);
  }
  reference.updates = as_one_row(*model, false) - reference.before;
  return reference;
}

void Training::add(double loss, const Model& model) {
  if (losses.empty()) gradient = as_one_row(model, true);
  losses.push_back(loss);
}

Difference expect_same_training(const std::string& name, const Training& training, const Model& model, const Reference& reference, Difference limit) {
  const auto compare = [&](const std::string& what, const torch::Tensor& got, const torch::Tensor& expected, double at_most) {
    if (at_most == 0) expect_equal_bits(what + " of " + name, got, expected);
    expect_close(what + " of " + name, got, expected, at_most);
    return ((got - expected).norm() / expected.norm()).item<double>();
  };
  const auto row = [](const std::vector<double>& losses) { return torch::tensor(losses, torch::kDouble); };
  return {compare("losses", row(training.losses), row(reference.training.losses), limit.losses),
          compare("gradient", training.gradient, reference.training.gradient, limit.gradient),
          compare("updates", as_one_row(model, false) - reference.before, reference.updates, limit.updates)};
}

std::vector<Speed> by_turns(Process& process, const std::vector<Variant>& variants, std::int64_t blocks, std::int64_t samples) {
  constexpr int warm_up = 3;  // steps: fills the caches, empties what the loader made ahead
  struct Sums {
    std::vector<double> step_s;
    double wall_s = 0, waited_s = 0, busy_s = 0;
  };
  std::vector<Sums> sums(variants.size());
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  for (std::int64_t block = 0; block < blocks; ++block)
    for (size_t i = 0; i < variants.size(); ++i) {
      const Variant& variant = variants[i];
      const std::int64_t steps = std::max<std::int64_t>(1, samples / variant.batch);
      for (int s = 0; s < warm_up; ++s) variant.step();
      finish_device_work();
      std::optional<DeviceMonitor> gpu;
      if (process.device().is_cuda()) gpu.emplace(0.02, standard_probes(monitored_gpu(process.device())));
      const double waited = variant.batches->waited_s(), cpu = cpu_seconds();
      const WallTimer timer;
      for (std::int64_t s = 0; s < steps; ++s) variant.step();
      finish_device_work();
      const double wall = timer.seconds();
      if (gpu) gpu->stop();
      sums[i].step_s.push_back(wall / static_cast<double>(steps));
      sums[i].wall_s += wall;
      sums[i].waited_s += variant.batches->waited_s() - waited;
      sums[i].busy_s += gpu ? wall * gpu->statistics(&MonitorSample::gpu_percent).mean / 100 : (cpu_seconds() - cpu) / cores;
      variant.batches->pause();
    }
  std::vector<Speed> speeds;
  for (size_t i = 0; i < variants.size(); ++i) {
    Speed speed;
    speed.step = {median(sums[i].step_s), quantile(sums[i].step_s, 0.95), sums[i].step_s};
    speed.samples_per_s = static_cast<double>(variants[i].batch) / speed.step.median;
    speed.data_share = sums[i].waited_s / sums[i].wall_s;
    speed.busy = sums[i].busy_s / sums[i].wall_s;
    speeds.push_back(speed);
  }
  return speeds;
}

void write_speed(Process& process, const Workload& workload, const std::string& variant, std::int64_t batch, const Speed& speed, const std::string& dtype) {
  Row row;
  fill(row, speed.step);
  row.set("variant", variant).set("workload", workload.name()).set("kind", "measured").set("dtype", dtype);
  row.set("batch", batch).set("global_batch", batch).set("rate", speed.samples_per_s).set("rate_unit", "samples/s");
  row.set("data_wait_s", speed.data_share * speed.step.median).set("measured", speed.busy).set("unit", "utilisation");
  write_row(process, row);
  write_samples(process, variant, speed.step.samples);
}

void report(Process& process, const Workload& workload, const std::vector<Variant>& variants, const std::vector<Speed>& speeds) {
  const std::string busy = process.device().is_cuda() ? "GPU busy" : "cores busy";
  Table table({"variant", "step", "samples/s", "gain", "waits for data", busy});
  for (size_t i = 0; i < variants.size(); ++i) {
    const Speed& speed = speeds[i];
    table.add({variants[i].name, fmt::format("{:.2f} ms", 1e3 * speed.step.median), fmt::format("{:.0f}", speed.samples_per_s),
               fmt::format("{:.2f}x", speed.samples_per_s / speeds.front().samples_per_s), fmt::format("{:.0f}%", 100 * speed.data_share),
               fmt::format("{:.0f}%", 100 * speed.busy)});
    write_speed(process, workload, variants[i].name, variants[i].batch, speed);
  }
  fmt::print("{}", table.text(2));
}

}  // namespace manyranks
