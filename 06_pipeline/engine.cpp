#include "engine.hpp"

#include "check.hpp"              // expect_sound
#include "launch/errors.hpp"
#include "measure/allocator.hpp"  // CountingAllocator

namespace manyranks::pipeline {

// Messages of one kind between two ranks arrive in order: the tag only keeps activations and gradients apart.
static int tag_of(bool activation) { return activation ? 0 : 1; }

Engine::Engine(Communicator& pipeline, Schedule schedule, std::vector<Stage*> stages)
    : pipeline_(pipeline), schedule_(std::move(schedule)), stages_(std::move(stages)), input_shapes_(stages_.size()), output_shapes_(stages_.size()) {
  expect_sound(schedule_);
  if (schedule_.stages != pipeline_.size() || schedule_.chunks != static_cast<int>(stages_.size()))
    throw usage_error("schedule " + schedule_.name, fmt::format("is for {} stages with {} chunks, this pipeline has {} with {}", schedule_.stages, schedule_.chunks,
                                                                pipeline_.size(), stages_.size()));
}

void Engine::learn_shapes(const torch::Tensor& example) {
  const int stage = pipeline_.rank();
  for (int g = 0; g < schedule_.virtual_stages(); ++g) {
    const auto [owner, chunk] = schedule_.place(g);
    const auto before = g > 0 ? schedule_.place(g - 1) : Schedule::Place{-1, -1};
    if (stage == owner) {
      torch::Tensor input = example;
      if (g > 0) {
        Shape& shape = input_shapes_[chunk];
        if (before.stage == owner) {
          shape = output_shapes_[before.chunk];
        } else {
          auto message = torch::zeros({16}, torch::kInt64);  // dimensions, dtype, sizes
          pipeline_.recv(message, before.stage, tag_of(true));
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
        pipeline_.send(torch::tensor(numbers), schedule_.place(g + 1).stage, tag_of(true));
      }
    }
  }
}

// One receive per channel is always under way, so that a message comes in while this stage computes.
void Engine::post_receive_after(size_t position, bool activation) {
  const int stage = pipeline_.rank();
  const auto& actions = schedule_.actions[stage];
  const Kind kind = activation ? Kind::receive_activation : Kind::receive_gradient;
  for (; position < actions.size(); ++position) {
    const Action& action = actions[position];
    if (action.kind != kind) continue;
    MemoryTag tag(Tag::buffers, "receive");
    const Shape& shape = activation ? input_shapes_[action.chunk] : output_shapes_[action.chunk];
    Incoming incoming{torch::empty(shape.sizes, torch::TensorOptions(shape.dtype).device(shape.device)), {}};
    incoming.work = pipeline_.recv_async(incoming.tensor, schedule_.peer(stage, action)->stage, tag_of(activation));
    posted_[activation].emplace(Key{action.chunk, action.microbatch}, std::move(incoming));
    return;
  }
}

void Engine::receive(const Action& action) {
  const bool activation = carries_activation(action.kind);
  auto posted = posted_[activation].extract({action.chunk, action.microbatch});
  Incoming incoming = std::move(posted.mapped());
  incoming.work.wait();
  if (activation) CountingAllocator::get().retag(incoming.tensor, Tag::activations);
  (activation ? activations_ : gradients_)[posted.key()] = std::move(incoming.tensor);
}

void Engine::send(const Action& action) {
  const bool activation = carries_activation(action.kind);
  auto ready = to_send_[activation].extract({action.chunk, action.microbatch});
  // Never blocks: two neighbours that send to each other at once would wait for ever.
  sends_.push_back(pipeline_.send_async(ready.mapped().contiguous(), schedule_.peer(pipeline_.rank(), action)->stage, tag_of(activation)));
  std::erase_if(sends_, [](const Work& work) { return work.done(); });
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
    case Kind::forward: return pass_on(action, stage.forward(action.microbatch, first ? inputs.at(action.microbatch) : take(activations_)), run);
    case Kind::backward: return pass_on(action, stage.backward(action.microbatch, take(gradients_)), run);
    case Kind::backward_input: return pass_on(action, stage.backward_input(action.microbatch, take(gradients_)), run);
    default: return stage.backward_weight(action.microbatch);
  }
}

Run Engine::run(const std::vector<torch::Tensor>& inputs) {
  const int stage = pipeline_.rank();
  const auto& actions = schedule_.actions[stage];
  const auto& memory = CountingAllocator::get();
  const int64_t held_before = memory.live_bytes(Tag::activations);
  Run run;
  run.spans.reserve(actions.size());
  for (bool activation : {true, false}) post_receive_after(0, activation);
  for (size_t position = 0; position < actions.size(); ++position) {
    const Action& action = actions[position];
    const double start = Run::now();
    try {
      if (is_compute(action.kind)) compute(action, inputs, run);
      else if (is_send(action.kind)) send(action);
      else receive(action);
      if (!is_compute(action.kind) && !is_send(action.kind)) post_receive_after(position + 1, carries_activation(action.kind));
    } catch (const Error& error) {
      throw Error(error.code, fmt::format("stage {} of {}, {}: {}", stage, schedule_.stages, to_string(action), error.operation), error.cause, error.hint);
    }
    run.spans.push_back({action, start, Run::now()});
    const int64_t held = memory.live_bytes(Tag::activations) - held_before;
    run.activation_bytes = std::max(run.activation_bytes, held);
    if (action.kind == Kind::forward && run.first_activation_bytes == 0) run.first_activation_bytes = held;
  }
  for (Work& work : sends_) work.wait();
  sends_.clear();
  return run;
}

}  // namespace manyranks::pipeline
