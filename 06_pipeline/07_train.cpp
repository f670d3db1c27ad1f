// Training on a mesh of pipeline x data: the model cut by measured cost, any schedule by flag, replicas averaged stage by stage.
//
// You learn   how to cut a real model so that stages balance (a pipeline runs at the pace of its slowest stage), and how two kinds of
//             parallelism share ranks: `split` gives each rank a pipeline (its replica) and a group of peers that hold the same stage.
// Run it      mpirun -np 2 build/06_pipeline/07_train
//             mpirun -np 4 build/06_pipeline/07_train --stages 2 --schedule zb-h1            (2 stages x 2 replicas)
//             mpirun -np 2 build/06_pipeline/07_train --model resnet18 --schedule 1f1b
// You see     the balance of the cut, gradients equal to the serial run over all replicas, and a loss that falls
// Not here    tensor parallelism inside a stage, mixed precision and checkpoints: chapters 04, 05 and common/train
// Read next   partition.cpp; then 07_challenge
#include <torch/optim.h>
#include <filesystem>

#include "check.hpp"                 // expect_sound
#include "comm/communicator.hpp"     // Communicator, split
#include "engine.hpp"                // Engine
#include "generate.hpp"              // generate
#include "launch/process.hpp"        // Process
#include "measure/provenance.hpp"    // write_row
#include "measure/statistics.hpp"    // median
#include "measure/table.hpp"         // format_seconds
#include "partition.hpp"             // partition_units, describe
#include "report.hpp"                // Workload, expect_serial

using namespace manyranks;
using namespace manyranks::pipeline;

// Forward plus backward of each unit, in milliseconds: the median of a few runs, measured once on rank 0 and told to all, because
// everybody must cut at the same place.
static std::vector<double> measure_units(Communicator& world, const Workload& work) {
  const size_t units = work.model->units().size();
  auto costs = torch::zeros({static_cast<int64_t>(units)}, torch::kFloat64);
  if (world.rank() == 0) {
    torch::Tensor x = work.inputs[0];
    for (size_t unit = 0; unit < units; ++unit) {
      std::vector<double> times;
      torch::Tensor y;
      for (int repeat = 0; repeat < 5; ++repeat) {
        const torch::Tensor input = x.is_floating_point() ? x.detach().requires_grad_(unit > 0) : x;
        const WallTimer timer;
        y = work.model->units()[unit]->forward(input);
        y.sum().backward();
        times.push_back(1e3 * timer.seconds());
      }
      costs[static_cast<int64_t>(unit)] = median(times);
      x = y.detach();
    }
    work.model->zero_grad();
  }
  world.broadcast(costs, 0);
  return {costs.const_data_ptr<double>(), costs.const_data_ptr<double>() + units};
}

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("06_pipeline/07_train", "pipeline x data parallel training");
    std::string kind = "gpt", name = "1f1b";
    int microbatches = 4, chunks = 1, pipeline_stages = 0;
    double rate = 0.05;
    options.app().add_option("--model", kind, "gpt or resnet18")->check(CLI::IsMember({"gpt", "resnet18"}));
    options.app().add_option("--schedule", name, "naive, gpipe, 1f1b, interleaved, zb-h1, or a CSV file");
    options.app().add_option("--microbatches", microbatches, "per replica and step")->check(CLI::PositiveNumber);
    options.app().add_option("--chunks", chunks, "per stage (interleaved)")->check(CLI::PositiveNumber);
    options.app().add_option("--stages", pipeline_stages, "of a pipeline; the other ranks are replicas. 0: all ranks are stages");
    options.app().add_option("--rate", rate, "learning rate")->check(CLI::PositiveNumber);

    // 2. Launch, and the mesh: rank = replica * stages + stage.
    process.start(options);
    Communicator& world = process.world();
    if (pipeline_stages == 0) pipeline_stages = world.size();
    if (pipeline_stages < 0 || world.size() % pipeline_stages != 0)
      throw usage_error("mesh", fmt::format("{} ranks cannot form pipelines of {} stages", world.size(), pipeline_stages));
    const int replicas = world.size() / pipeline_stages, replica = world.rank() / pipeline_stages, stage = world.rank() % pipeline_stages;
    const auto pipe = world.split(replica, stage);   // my replica: activations and gradients of activations
    const auto peers = world.split(stage, replica);  // my stage in all replicas: gradients of weights

    // 3. The schedule: generated or from a file, checked before anything runs.
    const bool from_file = std::filesystem::path(name).extension() == ".csv";
    const Schedule schedule = from_file ? load_schedule(name) : generate(name, pipeline_stages, microbatches, chunks);
    expect_sound(schedule);

    // 4. Model and data, the same everywhere from the seed; replica r trains on its own microbatches.
    ModelShape shape = usual_shape(kind);
    if (kind == "gpt") shape.layers = 6, shape.context = 64;
    if (kind == "resnet18") shape.image = 32, shape.classes = 10;
    if (options.quick && kind == "gpt") shape.width = 32, shape.context = 16;
    if (options.quick && kind == "resnet18") shape.image = 16;
    torch::manual_seed(options.seed);
    const auto model = make_model(kind, shape);
    std::vector<std::unique_ptr<Workload>> shards;
    for (int r = 0; r < replicas; ++r) {
      shards.push_back(make_workload(model, options.batch_or(4), schedule.microbatches, options.seed + r));
      shards.back()->loss = [loss = shards.back()->loss, replicas](const torch::Tensor& y, int microbatch) { return loss(y, microbatch) / replicas; };
    }
    const Workload& mine = *shards[replica];

    // 5. Serial reference: each replica's gradients, added in the order of the replicas, as the all-reduce does.
    auto serial = shards[0]->serial_gradients();
    for (int r = 1; r < replicas; ++r)
      for (const auto& [parameter, gradient] : shards[r]->serial_gradients()) serial[parameter] += gradient;

    // 6. The cut, by measured cost.
    const Partition cut = partition_units(measure_units(world, mine), schedule.virtual_stages());
    if (process.is_root()) fmt::print("{} cut into {} part(s), forward and backward of a microbatch:\n{}", kind, schedule.virtual_stages(), describe(cut, "ms"));
    const auto stages = cut_model(*model, cut.units, stage, pipeline_stages, {.seed = mine.seed}, mine.loss);
    Engine engine(*pipe, schedule, pointers(stages));
    engine.learn_shapes(mine.inputs[0]);

    // 7. One step: the pipeline, then each parameter's gradient over the replicas (4 bytes per parameter of this stage).
    const auto gradients = [&](int64_t step) {
      clear_gradients(stages);
      for (const auto& part : stages) part->begin_step(step);
      const Run run = engine.run(mine.inputs);
      for (const auto& part : stages)
        for (const torch::Tensor& parameter : part->parameters()) peers->all_reduce(parameter.grad());
      auto loss = torch::tensor({run.loss}, torch::kFloat64);
      world.all_reduce(loss);
      return loss.item<double>();
    };

    // 8. Verify the first step.
    gradients(0);
    expect_serial(stages, serial);
    world.barrier();
    if (process.is_root()) fmt::print("mesh {} stage(s) x {} replica(s), {}: gradients equal the serial run bit by bit\n", pipeline_stages, replicas, schedule.name);
    if (options.verify_only) return;

    // 9. Train on the one batch that there is: the loss must fall.
    std::vector<torch::Tensor> parameters;
    for (const auto& part : stages) parameters.insert(parameters.end(), part->parameters().begin(), part->parameters().end());
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(rate).momentum(0.9));
    double first = 0, last = 0;
    const int64_t steps = options.steps_or(20, 5);
    const Timing timing = time_steps(world, 0, steps, [&, step = int64_t{0}]() mutable {
      process.set_step(step);
      last = gradients(step);
      if (step++ == 0) first = last;
      optimizer.step();
    });
    if (!(last < first)) throw verify_error("07_train", fmt::format("the loss went from {:.4f} to {:.4f} in {} steps", first, last, steps), "a smaller --rate");

    // 10. Report.
    const int64_t samples = options.batch_or(4) * schedule.microbatches * replicas;
    Row row;
    row.set("variant", schedule.name).set("workload", kind).set("kind", "measured").set("batch", options.batch_or(4)).set("global_batch", samples);
    row.set("rate", static_cast<double>(samples) / timing.median).set("rate_unit", "samples/s").set("loss", last);
    fill(row, world);
    fill(row, timing);
    write_row(process, row);
    if (process.is_root())
      fmt::print("loss {:.4f} -> {:.4f} in {} steps; step {}, {:.1f} samples/s\n", first, last, steps, format_seconds(timing.median), static_cast<double>(samples) / timing.median);
  });
}
