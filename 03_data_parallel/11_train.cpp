// The real thing: a network on images, on any number of ranks, with any strategy; validation, checkpoints, TensorBoard.
//
// You learn   what stands around the loop of the lessons before: samples dealt to ranks without one lost or twice, uneven last
//             batches, a learning rate for the global batch, validation over ranks, a run that can be killed and resumed.
// Run it      mpirun -np 2 build/03_data_parallel/11_train --quick --epochs 1 --sync-batchnorm --train-size 13 --test-size 5 --batch 4
//             mpirun -np 4 build/03_data_parallel/11_train --data ~/cifar-10-batches-bin --strategy zero2 --checkpoint run1
//             mpirun -np 4 build/03_data_parallel/11_train --data ~/cifar-10-batches-bin --strategy zero2 --checkpoint run1 --resume
//             mpirun -np 2 build/03_data_parallel/11_train --quick --model convnet --amp bf16
// You see     parameters changed in a step as in one process with one batch of all samples, to 2e-03 (norm-relative) on 2 rank(s)
//             epoch 1/1: loss 2.373, accuracy 40.0% on 5, 13 images/s, waited 0% for data
// Read next   chapter 05 for mixed precision; scripts/one_vs_two_nodes.sh for the wall time on one and on two nodes
#include <filesystem>

#include "data/open.hpp"           // open_dataset
#include "data/torch_loader.hpp"   // TorchLoader, DistributedSampler
#include "measure/monitor.hpp"     // DeviceMonitor
#include "measure/progress.hpp"    // Progress
#include "measure/provenance.hpp"  // write_row
#include "measure/table.hpp"       // format_seconds
#include "measure/tensorboard.hpp" // EventWriter
#include "train/checkpoint.hpp"    // save_tensors, load_tensors_into
#include "train/schedule.hpp"      // warmup_cosine, linear_scaling
#include "train_check.hpp"         // Settings, backward, verify

using namespace manyranks;

namespace {

// Statistics of batch normalisation differ from rank to rank: rank 0's count.
void share_buffers(Communicator& world, const Model& model) {
  for (const auto& buffer : model.buffers()) world.broadcast(as_row(buffer), 0);
}

torch::Tensor sum_over_ranks(Communicator& world, const torch::Tensor& numbers, torch::Device device) {
  auto sums = numbers.to(device);  // NCCL moves CUDA tensors only
  world.all_reduce(sums);
  return sums.cpu();
}

struct Score { double loss = 0, accuracy = 0; };

Score validate(Communicator& world, Strategy& strategy, Model& model, const Amp& amp, torch::Device device, TorchLoader& loader, DistributedSampler& sampler) {
  const torch::NoGradGuard no_grad;
  share_buffers(world, model);
  model.eval();
  auto sums = torch::zeros({3}, torch::kDouble);  // loss, right, samples
  sampler.start_epoch(0);
  loader.start(sampler);
  while (const auto batch = loader.next()) {
    if (batch->labels.numel() == 0) {
      strategy.follow();
      continue;
    }
    const Autocast autocast(amp, device.type());
    const auto output = strategy.forward(batch->images.to(device)).to(torch::kFloat).cpu();
    const double n = static_cast<double>(batch->labels.numel());
    sums += torch::tensor({cross_entropy(output, batch->labels).item<double>() * n, (output.argmax(1) == batch->labels).sum().item<double>(), n}, torch::kDouble);
  }
  sums = sum_over_ranks(world, sums, device);
  model.train();
  return {sums[0].item<double>() / sums[2].item<double>(), sums[1].item<double>() / sums[2].item<double>()};
}

std::string checkpoint_path(const Settings& settings, int rank) { return fmt::format("{}/rank{:04d}.safetensors", settings.checkpoint, rank); }

NamedTensors everything(Strategy& strategy, const Model& model) {
  NamedTensors tensors = strategy.state();
  for (const auto& item : model.named_buffers()) tensors.emplace_back("buffer." + item.key(), item.value());
  return tensors;
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("03_data_parallel/11_train", "train a network on images with any strategy");
    Settings settings;
    Amp amp(options, scaling);
    options.add("--model", settings.model, "what to train").one_of({"mlp", "convnet", "resnet18", "resnet50", "vgg11"});
    options.add("--strategy", settings.strategy, "how to share the work").one_of({"naive", "bucketed", "ddp", "horovod", "zero1", "zero2", "zero3"});
    options.add("--sync-batchnorm", settings.sync_batchnorm, "normalise over the samples of all ranks");
    options.add("--epochs", settings.epochs, "passes over the data").positive();
    options.add("--base-rate", settings.base_rate, "learning rate for a global batch of 256");
    options.add("--train-size", settings.train_size, "samples of the embedded data set; 0: its usual size");
    options.add("--test-size", settings.test_size, "likewise, for validation");
    options.add("--workers", settings.workers, "threads that prepare batches");
    options.add("--checkpoint", settings.checkpoint, "folder: a file per rank, written after each epoch");
    options.add("--stop-after", settings.stop_after, "end after this epoch, as if killed; the schedule stays that of --epochs").positive();
    options.add("--resume", settings.resume, "go on from --checkpoint").needs("--checkpoint");
    options.add("--tensorboard", settings.tensorboard, "folder for event files");
    options.add("--monitor", settings.monitor, "folder for utilisation over time, a file per rank");
    process.start(options);
    if (options.quick && !options.given("--train-size")) settings.train_size = 96;
    if (options.quick && !options.given("--test-size")) settings.test_size = 48;
    Communicator& world = process.world();

    // 2. Data: every sample to one rank, once per epoch.
    OpenOptions open;
    open.dir = options.data, open.embedded = "shapes", open.seed = options.seed, open.size = settings.train_size;
    const std::shared_ptr<const Dataset> train = open_dataset(open);
    open.split = Split::test, open.size = settings.test_size;
    const std::shared_ptr<const Dataset> test = open_dataset(open);
    if (process.is_root()) fmt::print("  {}\n", train->describe());
    if (process.is_root() && amp.on()) fmt::print("  CPU: {}\n", process.cpu_note());
    const int64_t batch = options.batch_or(options.quick ? 8 : 32);
    LoaderOptions loading;
    loading.batch = batch, loading.workers = settings.workers, loading.mean = {0.5F}, loading.deviation = {0.25F};
    LoaderOptions augmented = loading;
    augmented.augment = {.padding = train->shape().height / 8, .flip = true, .seed = options.seed};
    TorchLoader train_loader(train, augmented), test_loader(test, loading);
    DistributedSampler sampler(train->size(), world.rank(), world.size(), {options.seed}), test_sampler(test->size(), world.rank(), world.size(), {options.seed, false});

    // 3. Verify, then model and strategy. The seed makes all ranks start alike; the strategy makes sure.
    ModelShape shape = usual_shape(settings.model);
    shape.classes = train->classes(), shape.channels = train->shape().channels, shape.image = train->shape().height;
    const MakeOptimizer make_optimizer = make_sgd(0.9, 5e-4);
    const std::string words = verify(world, settings, amp, shape, process.device(), options.seed, make_optimizer, train, augmented);
    if (process.is_root()) fmt::print("  parameters {} on {} rank(s)\n", words, world.size());
    if (options.verify_only) return;
    torch::manual_seed(options.seed);
    auto model = make_model(settings.model, shape);
    model->to(process.device());
    model->train();
    const auto sync = settings.sync_batchnorm ? std::make_unique<SyncBatchNorm>(world, *model) : nullptr;
    ScaledStep scaled(world, amp);
    const auto strategy = make_strategy(settings.strategy, world, *model, {scaled.wrap(make_optimizer), {.rebuild = !settings.resume}});

    // 4. Resume: each rank its own file. Another strategy or world size would need other shards: refused.
    int64_t epoch = 0, step = 0;
    const std::string layout = fmt::format("{} {}{} on {} ranks", settings.strategy, settings.model, amp.on() ? " in " + amp.dtype_name() : "", world.size());
    if (settings.resume) {
      safetensors::Metadata metadata;
      load_tensors(checkpoint_path(settings, world.rank()), &metadata);
      if (metadata["layout"] != layout) throw usage_error("--resume", fmt::format("the checkpoint is of {}, this is {}", metadata["layout"], layout));
      load_tensors_into(checkpoint_path(settings, world.rank()), everything(*strategy, *model));
      epoch = std::stoll(metadata["epoch"]), step = std::stoll(metadata["step"]);
      scaled.scaler().load({std::stof(metadata["scale"]), std::stoll(metadata["good_steps"]), std::stoll(metadata["skipped"])});
      strategy->set_steps_done(step - scaled.scaler().skipped());
      if (process.is_root()) fmt::print("  resumed after epoch {}, step {}\n", epoch, step);
    }

    // 5. Train. The rate follows the global batch; a last batch that is smaller than the others weighs by its samples.
    sampler.start_epoch(0);
    const int64_t steps_per_epoch = sampler.batches(batch);
    const int64_t total = settings.epochs * steps_per_epoch;
    const Schedule rate = warmup_cosine(linear_scaling(settings.base_rate, batch * world.size()), std::min(steps_per_epoch / 2 + 1, total - 1), total);
    std::unique_ptr<DeviceMonitor> monitor;
    if (!settings.monitor.empty()) monitor = std::make_unique<DeviceMonitor>(0.5, standard_probes(process.device().is_cuda() ? std::to_string(process.device().index()) : ""));
    std::unique_ptr<EventWriter> events;
    if (process.is_root() && !settings.tensorboard.empty()) events = std::make_unique<EventWriter>(settings.tensorboard);
    const int64_t last = settings.stop_after ? std::min(settings.stop_after, settings.epochs) : settings.epochs;
    for (; epoch < last; ++epoch) {
      Progress progress(fmt::format("epoch {}/{}", epoch + 1, settings.epochs), steps_per_epoch, process.is_root());
      sampler.start_epoch(epoch);
      train_loader.start(sampler);
      const WallTimer timer;
      double loss_sum = 0, waited = 0;
      for (int64_t b = 0; b < steps_per_epoch; ++b, ++step) {
        process.set_step(step);
        const WallTimer wait;
        const auto samples = train_loader.next();
        waited += wait.seconds();
        const int64_t all = sampler.state(b + 1, batch).position - sampler.state(b, batch).position;
        loss_sum += backward(*strategy, scaled, amp, samples->images, samples->labels, process.device(), settings.sync_batchnorm);
        strategy->step(rate(step), 1.0 / static_cast<double>(all));
        progress.update(b + 1, fmt::format("loss {:.3f}", loss_sum / static_cast<double>((b + 1) * batch)));
      }
      const auto totals = sum_over_ranks(world, torch::tensor({loss_sum, waited / world.size()}, torch::kDouble), process.device());
      const double seconds = timer.seconds(), loss = totals[0].item<double>() / static_cast<double>(train->size());

      // 6. Validate, report, save: all ranks' files are written before any of them says so.
      const Score score = validate(world, *strategy, *model, amp, process.device(), test_loader, test_sampler);
      if (process.is_root())
        fmt::print("  epoch {}/{}: loss {:.3f}, accuracy {:.1f}% on {}, {:.0f} images/s, waited {:.0f}% for data\n", epoch + 1, settings.epochs, loss, 100 * score.accuracy, test->size(),
                   static_cast<double>(train->size()) / seconds, 100 * totals[1].item<double>() / seconds);
      if (process.is_root() && amp.scales_loss()) fmt::print("  loss scale {:g}, {} steps skipped so far\n", scaled.scaler().scale(), scaled.scaler().skipped());
      if (events) events->scalar("loss/train", loss, step), events->scalar("loss/test", score.loss, step), events->scalar("accuracy", score.accuracy, step);
      Row row;
      fill(row, world);
      row.set("variant", settings.strategy).set("workload", settings.model + " on " + train->name()).set("kind", "measured").set("dtype", amp.dtype_name()).set("batch", batch).set("global_batch", batch * world.size());
      row.set("iterations", steps_per_epoch).set("rate", static_cast<double>(train->size()) / seconds).set("rate_unit", "images/s").set("loss", loss);
      row.set("data_wait_s", totals[1].item<double>() / static_cast<double>(steps_per_epoch)).set("measured", score.accuracy).set("unit", "accuracy");
      write_row(process, row);
      if (!settings.checkpoint.empty()) {
        std::filesystem::create_directories(settings.checkpoint);
        save_tensors(checkpoint_path(settings, world.rank()), everything(*strategy, *model), {{"layout", layout}, {"epoch", std::to_string(epoch + 1)}, {"step", std::to_string(step)},
                     {"scale", fmt::format("{:.9g}", scaled.scaler().scale())}, {"good_steps", std::to_string(scaled.scaler().state().good_steps)}, {"skipped", std::to_string(scaled.scaler().skipped())}});
        world.barrier();
      }
    }

    if (monitor) {
      monitor->stop();
      std::filesystem::create_directories(settings.monitor);
      monitor->write_csv(fmt::format("{}/rank{}.csv", settings.monitor, world.rank()));
      if (process.is_root()) fmt::print("  rank 0: {}\n", monitor->summary());
    }

    // 7. Verify what must hold at the end of any data-parallel run: all ranks have the same model.
    const auto parameters = strategy->gather_parameters();
    double checksum = 0;
    for (const auto& tensor : parameters) {
      auto first = tensor.clone();
      world.broadcast(first, 0);
      expect_equal_bits("parameter against rank 0's", tensor, first);
      checksum += tensor.to(torch::kDouble).abs().sum().item<double>();
    }
    if (process.is_root()) fmt::print("  all ranks hold the same bits; checksum {:.17g}\n", checksum);
  });
}
