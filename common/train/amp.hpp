// --amp off|fp16|bf16 with --loss-scale, and the switch for LibTorch's autocast.
//
//   Amp amp(options);                       // before process.start()
//   {
//     const Autocast autocast(amp, device.type());
//     loss = cross_entropy(model->forward(x), y);
//   }                                       // backward outside: each operator runs in the type that its forward had
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "train/grad_scaler.hpp"  // ScalerOptions

namespace manyranks {

class Options;

class Amp {
 public:
  Amp() = default;                              // off
  explicit Amp(std::string name);               // off | fp16 | bf16, or a usage error
  // Adds --amp and --loss-scale; `this` must stay where it is while flags are parsed.
  explicit Amp(Options& options, ScalerOptions scaling = {});
  Amp(const Amp&) = default;
  Amp& operator=(const Amp&) = default;

  bool on() const { return name_ != "off"; }
  bool scales_loss() const { return name_ == "fp16"; }  // bfloat16 has float32's range: nothing underflows that would not there
  at::ScalarType dtype() const;
  std::string dtype_name() const;               // float32 | float16 | bfloat16, as in the CSV
  const ScalerOptions& scaling() const { return scaling_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_ = "off";
  ScalerOptions scaling_;
};

// While one lives, matrix products and convolutions on this thread run in half precision; weights stay float32. Autocast keeps the half
// copies of weights until the outermost one ends: one per step, or a step would use the weights of the step before.
class Autocast {
 public:
  Autocast(const Amp& amp, at::DeviceType device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
  at::DeviceType device_;
  bool before_ = false;
  at::ScalarType dtype_before_{};
};

}  // namespace manyranks
