// Tensors to and from safetensors files, and a whole training state in one: parameters, buffers, optimiser, random numbers
// and counters. A run that resumes from it goes on with the same bits.
#pragma once

#include "launch/torch.hpp"

#include <string>

#include "train/optimizer.hpp"    // Optimizer, NamedTensors, Counters
#include "train/safetensors.hpp"  // Metadata

namespace manyranks {

// Any device, any dense layout; written contiguous. Atomic.
void save_tensors(const std::string& path, const NamedTensors& tensors, const safetensors::Metadata& metadata = {});

// All tensors of a file, on the CPU, by name.
NamedTensors load_tensors(const std::string& path, safetensors::Metadata* metadata = nullptr);

// Reads the file's tensors into these, in place, so that views of flat buffers stay views. Strict: a name that is missing on
// either side, another dtype or another shape is a data error, and then nothing has been changed.
void load_tensors_into(const std::string& path, const NamedTensors& tensors);

// Parameters and buffers under Python's names (a state_dict), each tensor once.
NamedTensors named_state(const torch::nn::Module& module);

struct TrainingState {
  torch::nn::Module* model = nullptr;
  Optimizer* optimizer = nullptr;  // may be left out
  Counters counters;               // epoch, step, samples seen, loss scale in steps, ...
};

// Tensors "model.NAME", "optimizer.NAME", "random.cpu" (and "random.cuda" if the model is there); counters in the metadata.
// In a job with several ranks each rank that holds something of its own saves a file of its own.
void save_checkpoint(const std::string& path, const TrainingState& state);
// Fills model, optimiser and random numbers in place, and replaces the counters.
void load_checkpoint(const std::string& path, TrainingState& state);

}  // namespace manyranks
