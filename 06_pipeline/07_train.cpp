// Training on a mesh of pipeline x tensor x data: the model cut by measured cost, any schedule by flag, replicas summed stage by stage.
//
// You learn   how to cut a real model so that stages balance (a pipeline runs at the pace of its slowest stage); how three kinds of
//             parallelism share ranks, each with its own communicator; and what a checkpoint of a cut model must say: the cut, because
//             a measured one is another one tomorrow.
// Run it      mpirun -np 2 build/06_pipeline/07_train
//             mpirun -np 4 build/06_pipeline/07_train --stages 2 --schedule zb-h1               (2 stages x 2 replicas)
//             mpirun -np 8 build/06_pipeline/07_train --quick --stages 2 --tensor 2             (2 x 2 x 2)
//             mpirun -np 2 build/06_pipeline/07_train --model resnet18 --trace run.json
//             mpirun -np 2 build/06_pipeline/07_train --amp bf16
//             mpirun -np 2 build/06_pipeline/07_train --checkpoint run1                         (and again with --resume --steps 40)
// You see     the balance of the cut, gradients equal to the serial run over all replicas, a loss that falls, the Gantt chart, and a
//             checksum of all parameters: the same for every schedule, every cut and every resumed run
// Read next   partition.cpp; then 07_challenge
#include <filesystem>

#include <fmt/ranges.h>

#include "batches.hpp"                  // Batch, text_batch, image_batch
#include "check.hpp"                    // expect_sound
#include "comm/communicator.hpp"        // Communicator, split
#include "engine.hpp"                   // Engine
#include "generate.hpp"                 // generate
#include "launch/process.hpp"           // Process
#include "measure/allocator.hpp"        // CountingAllocator
#include "measure/provenance.hpp"       // write_row
#include "measure/statistics.hpp"       // median
#include "measure/table.hpp"            // format_seconds
#include "measure/verify.hpp"           // expect_equal_bits
#include "models/kinds.hpp"             // Names: a module that only holds others
#include "parallel/mesh.hpp"            // Mesh
#include "parallel/parallel_gpt.hpp"    // ParallelGpt
#include "parallel/replicate.hpp"       // allocate_shared
#include "parallel/scaled_step.hpp"     // ScaledStep
#include "parallel/strategy.hpp"        // make_adam
#include "partition.hpp"                // partition_units, describe
#include "rank_checkpoint.hpp"          // RankCheckpoint
#include "report.hpp"                   // report, pointers
#include "train/amp.hpp"                // Amp, Autocast
#include "train/checkpoint.hpp"         // load_tensors, load_tensors_into
#include "train/flat_parameters.hpp"    // FlatParameters
#include "train/text_gpt.hpp"           // TextGpt, strategy_name

using namespace manyranks;
using namespace manyranks::pipeline;

namespace {

// Forward plus backward of each unit, in milliseconds: the median of a few runs, measured by the first ranks (all that share rank 0's
// layers) while the others wait. Rank 0's times count for all, because everybody must cut at the same place.
std::vector<double> measure_units(Communicator& world, int tensor, Model& model, const Batch& batch, const UnitStage::Loss& loss, const Amp& amp) {
  const size_t units = model.units().size();
  auto costs = torch::zeros({static_cast<int64_t>(units)}, torch::kFloat64);
  torch::Tensor x = batch.inputs[0];
  for (size_t unit = 0; unit < units && world.rank() < tensor; ++unit) {
    std::vector<double> times;
    torch::Tensor y;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const torch::Tensor input = x.is_floating_point() ? x.detach().requires_grad_(unit > 0) : x;
      const WallTimer timer;
      {
        const Autocast autocast(amp, x.device().type());
        y = model.units()[unit]->forward(input);
      }
      (unit + 1 == units ? loss(y, 0) : y.sum()).backward();
      finish_device_work();
      times.push_back(1e3 * timer.seconds());
    }
    costs[static_cast<int64_t>(unit)] = median(times);
    x = y.detach();
  }
  model.zero_grad();
  costs = costs.to(x.device());
  world.broadcast(costs, 0);
  costs = costs.cpu();
  return {costs.const_data_ptr<double>(), costs.const_data_ptr<double>() + units};
}

// The bits of all parameters of a replica as one whole number: it does not depend on the cut, and one flipped bit changes it.
int64_t checksum_of(const Mesh& mesh, const FlatParameters& flat) {
  auto sum = flat.parameters().view(torch::kInt32).to(torch::kInt64).sum();
  mesh["pipeline"].all_reduce(sum);
  mesh["tensor"].all_reduce(sum);
  return sum.item<int64_t>();
}

// The sum of losses of the model with its parts put together. Collective over the ranks that share its layers.
double dense_loss(const ParallelGpt& parallel, const Batch& batch, double parts, const Amp& amp) {
  torch::NoGradGuard no_graph;
  const Autocast autocast(amp, torch::kCPU);
  const auto whole = parallel.gather_whole();
  const auto dense = make_model("gpt", parallel.shape());
  const auto parameters = dense->parameters();
  for (size_t i = 0; i < whole.size(); ++i) parameters[i].copy_(whole[i]);
  double sum = 0;
  for (size_t i = 0; i < batch.inputs.size(); ++i) sum += cross_entropy(dense->forward(batch.inputs[i].cpu()).to(torch::kFloat), batch.targets[i].cpu()).item<double>() / parts;
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("06_pipeline/07_train", "pipeline x tensor x data parallel training");
    std::string kind = "gpt", name = "1f1b";
    int microbatches = 4, chunks = 1, pipeline_stages = 0, tensor = 1;
    double rate = 1e-3;
    bool resume = false;
    RankCheckpoint checkpoint;
    std::vector<size_t> units_per_part;
    TextGpt gpt(options, 6, 6);  // 6 blocks: enough to cut
    Amp amp(options);
    options.add("--model", kind, "gpt or resnet18").one_of({"gpt", "resnet18"});
    options.add("--schedule", name, "naive, gpipe, 1f1b, interleaved, zb-h1, or a CSV file");
    options.add("--microbatches", microbatches, "per replica and step").positive();
    options.add("--chunks", chunks, "per stage (interleaved)").positive();
    options.add("--tensor", tensor, "ranks that share each layer (gpt)").positive();
    options.add("--stages", pipeline_stages, "of a pipeline; what ranks are left are replicas. 0: as many as there can be");
    options.add("--cut", units_per_part, "units of each part (3,5): instead of measuring").list();
    options.add("--rate", rate, "learning rate").positive();
    options.add("--checkpoint", checkpoint.folder, "folder: written after the last step");
    options.add("--resume", resume, "go on from --checkpoint").needs("--checkpoint");

    // 2. Launch, and the mesh. Tensor ranks talk most and sit next to each other: rank = (replica * stages + stage) * tensor + part.
    process.start(options);
    auto& memory = CountingAllocator::get();
    keep_freed_memory();
    Communicator& world = process.world();
    if (kind != "gpt" && tensor > 1) throw usage_error("--tensor", "only the gpt's layers are cut over ranks", "--model gpt");
    if (pipeline_stages == 0) pipeline_stages = std::max(1, world.size() / tensor);
    const int replicas = std::max(1, world.size() / (tensor * std::max(1, pipeline_stages)));
    const Mesh mesh(world, {{"data", replicas}, {"pipeline", pipeline_stages}, {"tensor", tensor}});
    Communicator &pipe = mesh["pipeline"], &peers = mesh["data"];  // activations and their gradients; gradients of weights
    const int stage = pipe.rank(), replica = peers.rank();

    // 3. The schedule: generated or from a file, checked before anything runs.
    const bool from_file = std::filesystem::path(name).extension() == ".csv";
    const Schedule schedule = from_file ? load_schedule(name) : generate(name, pipeline_stages, microbatches, chunks);
    expect_sound(schedule);

    // 4. The whole model, the same everywhere from the seed: needed for the cut and the serial reference, then let go.
    const bool language = kind == "gpt";
    gpt.prepare(process.device());
    if (process.is_root() && amp.on()) fmt::print("CPU: {}\n", process.cpu_note());
    ModelShape shape = language ? gpt.shape : usual_shape(kind);
    if (!language) shape.image = options.quick ? 8 : 32, shape.classes = 10;
    torch::manual_seed(options.seed);
    auto parallel = tensor > 1 ? std::make_shared<ParallelGpt>(shape, TensorSplit{mesh["tensor"]}, RandomKeys{.seed = options.seed}) : nullptr;
    std::shared_ptr<Model> model = parallel ? std::static_pointer_cast<Model>(parallel) : language ? gpt.dense() : make_model(kind, shape);
    model->to(process.device());
    const int64_t size = options.batch_or(4);
    const auto batch_of = [&](int64_t step, int r) {
      return language ? text_batch(gpt, step, r, schedule.microbatches, size) : image_batch(shape, options.seed, step, r, schedule.microbatches, size, process.device());
    };
    Batch batch = batch_of(0, 0);
    const double parts_of_loss = static_cast<double>(schedule.microbatches) * replicas;
    ScaledStep scaled(world, amp);  // an overflow on one stage is everybody's: who steps while another skips trains another model
    const auto scale = [&] { return amp.scales_loss() ? static_cast<double>(scaled.scaler().scale()) : 1.0; };
    const UnitStage::Loss loss = [&](const torch::Tensor& output, int microbatch) {
      const auto logits = output.to(torch::kFloat), &target = batch.targets[microbatch];
      return scaled.scale((tensor > 1 ? vocabulary_cross_entropy(logits, target, mesh["tensor"]) : cross_entropy(logits, target)) / parts_of_loss);
    };
    std::vector<torch::Tensor> statistics;  // of batch normalisation: what is tried out below must leave no trace in them
    for (const auto& buffer : model->buffers()) statistics.push_back(buffer.clone());

    // 5. The cut: from the checkpoint, from --cut, or by measured cost.
    const std::string from = resume ? checkpoint.latest(world.rank()) : "";
    safetensors::Metadata saved;
    const std::string layout = fmt::format("{} on {}, {}", kind, mesh.text(), amp.dtype_name());
    if (resume) {
      load_tensors(from, &saved);
      if (saved["layout"] != layout) throw usage_error("--resume", fmt::format("the checkpoint is of {}, this is {}", saved["layout"], layout));
      std::istringstream numbers(saved["cut"]);
      units_per_part.clear();
      for (size_t units; numbers >> units;) units_per_part.push_back(units);
    }
    if (units_per_part.empty()) {
      const Partition cut = partition_units(measure_units(world, tensor, *model, batch, loss, amp), schedule.virtual_stages());
      if (process.is_root()) fmt::print("{} cut into {} part(s), forward and backward of a microbatch:\n{}", kind, schedule.virtual_stages(), describe(cut, "ms"));
      units_per_part = cut.units;
    }
    size_t units = 0;
    for (size_t part : units_per_part) units += part;
    if (units != model->units().size() || units_per_part.size() != static_cast<size_t>(schedule.virtual_stages()))
      throw usage_error("cut", fmt::format("{} units in {} parts, but {} has {} units and the schedule {} parts", units, units_per_part.size(), kind, model->units().size(), schedule.virtual_stages()));
    const auto stages = cut_model(*model, units_per_part, stage, pipeline_stages, {.seed = options.seed + replica, .amp = amp}, loss);
    Engine engine(pipe, schedule, pointers(stages));
    engine.learn_shapes(batch.inputs[0]);

    // 6. This rank's parameters and gradients, flat, in memory that its peers can read: one all-reduce per step copies nothing.
    Names mine;
    for (const auto& part : stages)
      for (size_t i = 0; i < part->units().size(); ++i) mine.register_module(fmt::format("unit{}", part->first_unit() + i), part->units()[i]);
    FlatParameters flat(mine, 1, [&](int64_t count, std::string_view purpose) { return allocate_shared(peers, count, purpose == "gradients" ? Tag::gradients : Tag::parameters); });
    const auto optimizer = scaled.wrap(make_adam())(flat.parameters(), flat.gradients());
    const auto compute_gradients = [&](int64_t step) {
      batch = batch_of(step, replica);
      flat.zero_grad();
      for (const auto& part : stages) part->begin_step(step);
      Run run = engine.run(batch.inputs);
      peers.all_reduce(flat.gradients());  // 4 bytes per parameter of this stage
      return run;
    };

    // 7. Verify the first step: each replica's microbatches in turn through the whole model, added in the order of the all-reduce. Layers
    // that are cut over ranks stay so; that they agree with whole ones (to rounding) is checked by the loss.
    torch::Tensor serial;
    for (int r = 0; r < replicas; ++r) {
      batch = batch_of(0, r);
      flat.zero_grad();
      const double sum = serial_step(*model, batch.inputs, loss, options.seed + r, 0, amp);
      serial = r == 0 ? flat.gradients().clone() : serial + flat.gradients();
      if (r == 0 && tensor > 1) expect_close("loss of the dense model", torch::tensor(sum / scale()), torch::tensor(dense_loss(*parallel, batch, parts_of_loss, amp)), amp.on() ? 1e-2 : 1e-5);
    }
    compute_gradients(0);
    expect_equal_bits("gradients of this stage", flat.gradients(), serial);
    world.barrier();
    if (process.is_root()) fmt::print("mesh {}, {}: gradients equal the serial run bit by bit\n", mesh.text(), schedule.name);
    if (options.verify_only) return;
    for (size_t i = 0; i < statistics.size(); ++i) model->buffers()[i].copy_(statistics[i]);
    model.reset(), parallel.reset(), serial.reset();  // from here on this rank holds its own units only

    // 8. Resume: everything that is not made from seed and step alone.
    int64_t step = 0;
    NamedTensors state{{"optimizer.mean", optimizer->state()[0].second}, {"optimizer.square", optimizer->state()[1].second}};
    for (const auto& slot : flat.slots()) state.emplace_back("model." + slot.name, slot.parameter);
    for (const auto& buffer : mine.named_buffers()) state.emplace_back("model." + buffer.key(), buffer.value());
    if (resume) {
      load_tensors_into(from, state);
      step = std::stoll(saved["step"]);
      scaled.scaler().load({std::stof(saved["scale"]), std::stoll(saved["good_steps"]), std::stoll(saved["skipped"])});
      optimizer->set_steps_done(step - scaled.scaler().skipped());
      if (process.is_root()) fmt::print("resumed after step {}\n", step);
    }

    // 9. Train. The first step warms up: its time does not count, unless it is the only one.
    double first = 0, last = 0;
    std::vector<Run> runs;
    const int64_t steps = options.steps_or(20, 5), start = step;
    if (start >= steps) throw usage_error("--steps", fmt::format("{}: the checkpoint has done {}", steps, start));
    const auto sent_so_far = [&] { return engine.bytes_sent() + peers.traffic().bytes_sent + mesh["tensor"].traffic().bytes_sent; };
    const int64_t sent_before = sent_so_far();
    memory.reset_peak();
    const int64_t warmup = steps - start > 1 ? 1 : 0;
    const Timing timing = time_steps(world, warmup, steps - start - warmup, [&] {
      process.set_step(step);
      runs.push_back(compute_gradients(step));
      auto sum = torch::tensor({runs.back().loss}, torch::TensorOptions(torch::kFloat64).device(process.device()));
      world.all_reduce(sum);
      last = sum.item<double>() / tensor / scale();  // each rank that shares the last layer has the whole loss
      if (step++ == start) first = last;
      if (!std::isfinite(last)) throw disagree_error("07_train", fmt::format("the loss is {}", last), "a smaller --rate");
      optimizer->step(rate);
    });
    auto most = torch::tensor({(sent_so_far() - sent_before) / (steps - start), memory.peak_bytes()}, torch::TensorOptions(torch::kInt64).device(process.device()));
    world.all_reduce(most, ReduceOp::max);  // of the rank that sends most, and of the rank that holds most
    if (!checkpoint.folder.empty()) {
      safetensors::Metadata metadata{{"layout", layout}, {"step", std::to_string(step)}, {"cut", fmt::format("{}", fmt::join(units_per_part, " "))},
                                     {"skipped", std::to_string(scaled.scaler().skipped())}, {"scale", fmt::format("{}", scaled.scaler().scale())},
                                     {"good_steps", std::to_string(scaled.scaler().state().good_steps)}};
      checkpoint.save(world, step, state, metadata);
    }

    // 10. Report: the first of the pipelines.
    const std::string workload = language ? fmt::format("gpt C={} L={} T={}", shape.width, shape.layers, shape.context) : kind;  // sizes are never pooled
    runs.erase(runs.begin(), runs.begin() + warmup);
    report(process, schedule, runs, workload, tensor);
    const int64_t samples = size * schedule.microbatches * replicas, checksum = checksum_of(mesh, flat);
    Row row;
    row.set("variant", strategy_name({{"pp", pipeline_stages}, {"tp", tensor}, {"dp", replicas}}, {schedule.name})).set("workload", workload).set("kind", "measured").set("dtype", amp.dtype_name());
    row.set("batch", size).set("global_batch", samples).set("rate", static_cast<double>(samples) / timing.median).set("rate_unit", "samples/s").set("loss", last);
    row.set("sent_bytes", most[0].item<int64_t>()).set("peak_bytes", most[1].item<int64_t>());
    fill(row, world);
    fill(row, timing);
    write_row(process, row);
    if (process.is_root())
      fmt::print("{}loss {:.4f} -> {:.4f} in {} steps; step {}, {:.1f} samples/s\nchecksum of the parameters {}\n", amp.scales_loss() ? fmt::format("loss scale {}, {} of {} steps skipped\n", scaled.scaler().scale(), scaled.scaler().skipped(), step) : "", first, last, steps - start, format_seconds(timing.median),
                 static_cast<double>(samples) / timing.median, checksum);
  });
}
