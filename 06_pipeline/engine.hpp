// Executes a schedule: this rank's list of actions, one after another, over a Communicator whose ranks are the stages.
//
//   Engine engine(world, one_f_one_b_schedule(world.size(), 8), {&stage});   // checks the schedule first
//   engine.learn_shapes(inputs[0]);
//   Run run = engine.run(inputs);                                            // gradients are now in the parameters
#pragma once

#include "launch/torch.hpp"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"  // Communicator, Work
#include "count.hpp"              // Span
#include "schedule.hpp"
#include "stage.hpp"

namespace manyranks::pipeline {

// What one pass over all microbatches did on this rank.
struct Run {
  // Seconds of the wall clock: comparable between ranks of a host, and between hosts as far as their clocks agree.
  static double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

  std::vector<Span> spans;            // all actions with their times; a receive's time is what this stage waited
  double loss = 0;                    // sum over microbatches; only on the stage that has the last virtual stage
  int64_t activation_bytes = 0;       // most that was held at the end of an action (counting allocator, beyond the start)
  int64_t first_activation_bytes = 0; // held after the first forward pass: one microbatch
};

class Engine {
 public:
  // stages[c]: chunk c of this rank. Throws exit 65 if the schedule is not sound with one buffer per channel, and a usage error if it
  // is not for so many ranks. Collective.
  Engine(Communicator& pipeline, Schedule schedule, std::vector<Stage*> stages);

  // A receiver must know what comes. Goes once through all virtual stages with a microbatch as the first one gets it; the shape of
  // each output travels as 16 numbers. Collective.
  void learn_shapes(const torch::Tensor& example);

  // `inputs` by microbatch: used on the first virtual stage, and may be empty on other ranks. Collective.
  Run run(const std::vector<torch::Tensor>& inputs);

  const Schedule& schedule() const { return schedule_; }
  int64_t bytes_sent() const;  // by this rank since it began, shapes included

 private:
  using Key = std::pair<int, int>;  // (chunk, microbatch)
  struct Shape {
    std::vector<int64_t> sizes;
    torch::ScalarType dtype = torch::kFloat32;
    torch::Device device = torch::kCPU;
  };

  void compute(const Action& action, const std::vector<torch::Tensor>& inputs, Run& run);
  void pass_on(const Action& action, const torch::Tensor& result, Run& run);
  void send(const Action& action);
  void receive(const Action& action);
  Communicator& channel(const Action& action);
  void named(const Action& action, const std::function<void()>& body);

  Communicator& pipeline_;
  Schedule schedule_;
  std::vector<Stage*> stages_;
  std::vector<std::unique_ptr<Communicator>> channels_;   // empty: all messages go over pipeline_
  std::vector<Shape> input_shapes_, output_shapes_;       // by chunk
  std::map<Key, torch::Tensor> activations_, gradients_;  // came in, not used yet
  std::map<Key, torch::Tensor> to_send_[2];               // made, not sent yet: gradients, activations
  std::vector<std::pair<Action, Work>> sends_;            // under way
};

}  // namespace manyranks::pipeline
