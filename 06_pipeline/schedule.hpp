// A pipeline schedule is data: for each stage (rank) the list of things that it does, in order. Generated (generate.hpp), written by
// hand in a CSV file, checked before it runs (check.hpp), counted (count.hpp), and executed (engine.hpp).
//
// With v chunks per stage the model is cut into p*v virtual stages: virtual stage g = chunk * p + stage lives on rank `stage`, so
// activations go round the ranks v times (interleaved schedule). With v = 1 virtual stage and stage are the same.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace manyranks::pipeline {

enum class Kind : unsigned char {
  forward,
  backward,         // whole: gradients of input and of weights
  backward_input,   // only what the stage before waits for
  backward_weight,  // the rest; nobody waits for it
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
};
inline constexpr std::array all_kinds{Kind::forward,         Kind::backward,           Kind::backward_input, Kind::backward_weight,
                                      Kind::send_activation, Kind::receive_activation, Kind::send_gradient,  Kind::receive_gradient};
const char* kind_name(Kind kind);
constexpr bool is_compute(Kind kind) { return kind <= Kind::backward_weight; }
constexpr bool is_send(Kind kind) { return kind == Kind::send_activation || kind == Kind::send_gradient; }
constexpr bool carries_activation(Kind kind) { return kind == Kind::send_activation || kind == Kind::receive_activation; }

struct Action {
  Kind kind = Kind::forward;
  int microbatch = 0;
  int chunk = 0;
  bool operator==(const Action&) const = default;
};
std::string to_string(const Action& action);  // "forward of microbatch 3 (chunk 1)"; chunk 0 is not mentioned

struct Schedule {
  std::string name;
  int stages = 1;        // p: ranks in the pipeline
  int microbatches = 1;  // m
  int chunks = 1;        // v: virtual stages per rank
  std::vector<std::vector<Action>> actions;  // by stage

  struct Place {
    int stage = 0, chunk = 0;
  };
  int virtual_stage(int stage, int chunk) const { return chunk * stages + stage; }
  int virtual_stages() const { return stages * chunks; }
  Place place(int virtual_stage) const { return {virtual_stage % stages, virtual_stage / stages}; }
  // The other end of a message action on `stage`: where it goes to or comes from. Nothing at the ends of the pipeline, for actions
  // that are no messages, and on one stage, where chunks hand over in memory.
  std::optional<Place> peer(int stage, const Action& action) const;

  bool operator==(const Schedule& other) const {
    return stages == other.stages && microbatches == other.microbatches && chunks == other.chunks && actions == other.actions;
  }
};

// CSV: "stage,action,microbatch,chunk", one row per action, stages in order, actions in order of execution. Its size (p, m, v) is what
// its rows say. Strict: a bad file is exit 65, naming file and line. Whether the schedule makes sense is for check.hpp to say.
std::string schedule_to_csv(const Schedule& schedule);
Schedule schedule_from_csv(std::string_view text, const std::string& file);
void save_schedule(const Schedule& schedule, const std::string& file);
Schedule load_schedule(const std::string& file);

}  // namespace manyranks::pipeline
