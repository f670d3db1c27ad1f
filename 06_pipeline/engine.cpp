#include "engine.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "check.hpp"              // expect_sound
#include "comm/announce.hpp"      // announce
#include "launch/errors.hpp"
#include "measure/allocator.hpp"  // CountingAllocator

namespace manyranks::pipeline {

// Messages of one kind between two ranks arrive in order: the tag only keeps activations and gradients apart.
static int tag_of(const Action& action) { return carries_activation(action.kind) ? 0 : 1; }

// The time of an action is that of its work, not of its launch. Only this stream: a send under way may wait for a peer that waits for us.
static void finish_stream(torch::Device device) {
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

Engine::Engine(Communicator& pipeline, Schedule schedule, std::vector<Stage*> stages)
    : pipeline_(pipeline), schedule_(std::move(schedule)), stages_(std::move(stages)), input_shapes_(stages_.size()), output_shapes_(stages_.size()) {
  expect_sound(schedule_);
  if (schedule_.stages != pipeline_.size() || schedule_.chunks != static_cast<int>(stages_.size()))
    throw usage_error("schedule " + schedule_.name, fmt::format("is for {} stages with {} chunks, this pipeline has {} with {}", schedule_.stages, schedule_.chunks,
                                                                pipeline_.size(), stages_.size()));
  // NCCL runs the calls of a communicator in order and holds a send until it is received. Over one communicator 1F1B would stop in the
  // cycle that check() shows for 0 buffers; with one per channel nothing waits behind a message that it does not need.
  if (pipeline_.backend() == "nccl")
    for (int i = 0; i < 6; ++i) channels_.push_back(pipeline_.split(0, pipeline_.rank()));
}

// A rank has an edge to the stage before and one to the stage behind; even, odd and the one that closes the ring (interleaved) never
// meet in one communicator, nor do the two directions.
Communicator& Engine::channel(const Action& action) {
  if (channels_.empty()) return pipeline_;
  const bool behind = action.kind == Kind::send_activation || action.kind == Kind::receive_gradient;
  const int edge = (pipeline_.rank() + (behind ? 0 : schedule_.stages - 1)) % schedule_.stages;  // from stage `edge` to the next
  return *channels_[3 * tag_of(action) + (edge == schedule_.stages - 1 ? 2 : edge % 2)];
}

int64_t Engine::bytes_sent() const {
  int64_t sum = pipeline_.traffic().bytes_sent;
  for (const auto& each : channels_) sum += each->traffic().bytes_sent;
  return sum;
}

// Errors say which stage and microbatch; so do those of the peers, if this rank dies or stalls in `body`.
void Engine::named(const Action& action, const std::function<void()>& body) {
  const std::string where = fmt::format("stage {} of {}, {}", pipeline_.rank(), schedule_.stages, to_string(action));
  announce(pipeline_, where);
  try {
    body();
  } catch (const Error& error) {
    throw Error(error.code, fmt::format("{}: {}", where, error.operation), error.cause, error.hint);
  } catch (const std::exception& error) {
    throw Error(Exit::disagree, fmt::format("{}: unexpected", where), error.what());
  }
}

void Engine::learn_shapes(const torch::Tensor& example) {
  const int stage = pipeline_.rank();
  for (int g = 0; g < schedule_.virtual_stages(); ++g) {
    const auto [owner, chunk] = schedule_.place(g);
    if (stage != owner) continue;
    torch::Tensor input = example;
    if (g > 0) {
      const auto before = schedule_.place(g - 1);
      Shape& shape = input_shapes_[chunk];
      if (before.stage == owner) {
        shape = output_shapes_[before.chunk];
      } else {
        auto message = torch::zeros({16}, torch::TensorOptions(torch::kInt64).device(example.device()));  // dimensions, dtype, sizes
        pipeline_.recv(message, before.stage);
        message = message.cpu();
        const int64_t* numbers = message.const_data_ptr<int64_t>();
        shape = {{numbers + 2, numbers + 2 + numbers[0]}, static_cast<torch::ScalarType>(numbers[1]), example.device()};
      }
      input = torch::zeros(shape.sizes, torch::TensorOptions(shape.dtype).device(shape.device));
    }
    const torch::Tensor output = stages_[chunk]->shape_of_output(input);
    output_shapes_[chunk] = {output.sizes().vec(), output.scalar_type(), output.device()};
    if (g + 1 < schedule_.virtual_stages() && schedule_.place(g + 1).stage != owner) {
      std::vector<int64_t> numbers{output.dim(), static_cast<int64_t>(output.scalar_type())};
      numbers.insert(numbers.end(), output.sizes().begin(), output.sizes().end());
      numbers.resize(16);
      pipeline_.send(torch::tensor(numbers).to(example.device()), schedule_.place(g + 1).stage);
    }
  }
}

// Received where the schedule says, on this thread: on a CPU whoever copies the bytes takes the core from the computation, so
// receiving ahead in the background would gain nothing. On a GPU the host runs ahead of the streams by itself.
void Engine::receive(const Action& action) {
  const bool activation = carries_activation(action.kind);
  const Shape& shape = activation ? input_shapes_[action.chunk] : output_shapes_[action.chunk];
  MemoryTag tag(activation ? Tag::activations : Tag::buffers, "receive");
  const auto tensor = torch::empty(shape.sizes, torch::TensorOptions(shape.dtype).device(shape.device));
  channel(action).recv(tensor, schedule_.peer(pipeline_.rank(), action)->stage, tag_of(action));
  finish_stream(shape.device);
  (activation ? activations_ : gradients_)[{action.chunk, action.microbatch}] = tensor;
}

void Engine::send(const Action& action) {
  auto ready = to_send_[carries_activation(action.kind)].extract({action.chunk, action.microbatch});
  // Never blocks: two neighbours that send to each other at once would wait for ever.
  sends_.emplace_back(action, channel(action).send_async(ready.mapped().contiguous(), schedule_.peer(pipeline_.rank(), action)->stage, tag_of(action)));
}

// A result goes to the list of what is to be sent or, on a single stage, straight to the next chunk.
void Engine::pass_on(const Action& action, const torch::Tensor& result, Run& run) {
  const bool forward = action.kind == Kind::forward;
  const int to = schedule_.virtual_stage(pipeline_.rank(), action.chunk) + (forward ? 1 : -1);
  // From here on it is a message, unless the graph holds it too.
  if (result.defined() && result.storage().use_count() == 1) CountingAllocator::get().retag(result, Tag::buffers);
  if (forward && to == schedule_.virtual_stages()) {
    run.loss += result.item<double>();
  } else if (to >= 0 && schedule_.stages == 1) {
    (forward ? activations_ : gradients_)[{schedule_.place(to).chunk, action.microbatch}] = result;
  } else if (to >= 0) {
    to_send_[forward][{action.chunk, action.microbatch}] = result;
  }
}

void Engine::compute(const Action& action, const std::vector<torch::Tensor>& inputs, Run& run) {
  const Key key{action.chunk, action.microbatch};
  Stage& stage = *stages_[action.chunk];
  const auto take = [&](std::map<Key, torch::Tensor>& from) {
    auto found = from.extract(key);
    return found ? std::move(found.mapped()) : torch::Tensor();
  };
  const bool first = pipeline_.rank() == 0 && action.chunk == 0;
  switch (action.kind) {
    case Kind::forward: pass_on(action, stage.forward(action.microbatch, first ? inputs.at(action.microbatch) : take(activations_)), run); break;
    case Kind::backward: pass_on(action, stage.backward(action.microbatch, take(gradients_)), run); break;
    case Kind::backward_input: pass_on(action, stage.backward_input(action.microbatch, take(gradients_)), run); break;
    default: stage.backward_weight(action.microbatch);
  }
  finish_stream(output_shapes_[action.chunk].device);
}

Run Engine::run(const std::vector<torch::Tensor>& inputs) {
  const auto& actions = schedule_.actions[pipeline_.rank()];
  const auto& memory = CountingAllocator::get();
  const int64_t held_before = memory.live_bytes(Tag::activations);
  Run run;
  run.spans.reserve(actions.size());
  for (const Action& action : actions) {
    std::erase_if(sends_, [](const auto& entry) { return entry.second.done(); });  // lets go of what they carried
    const double start = Run::now();
    named(action, [&] {
      if (is_compute(action.kind)) compute(action, inputs, run);
      else if (is_send(action.kind)) send(action);
      else receive(action);
    });
    run.spans.push_back({action, start, Run::now()});
    const int64_t held = memory.live_bytes(Tag::activations) - held_before;
    run.activation_bytes = std::max(run.activation_bytes, held);
    if (action.kind == Kind::forward && run.first_activation_bytes == 0) run.first_activation_bytes = held;
  }
  for (auto& [action, work] : sends_) named(action, [&work = work] { work.wait(); });
  sends_.clear();
  announce(pipeline_, "");
  return run;
}

}  // namespace manyranks::pipeline
