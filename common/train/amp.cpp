#include "train/amp.hpp"

#include <ATen/autocast_mode.h>

#include "launch/errors.hpp"
#include "launch/options.hpp"

namespace manyranks {

Amp::Amp(std::string name) : name_(std::move(name)) {
  if (name_ != "off" && name_ != "fp16" && name_ != "bf16") throw usage_error("--amp", "there is no precision '" + name_ + "'", "off, fp16 or bf16");
}

Amp::Amp(Options& options, ScalerOptions scaling) : scaling_(scaling) {
  options.add("--amp", name_, "mixed precision: products in half precision, weights in float32; fp16 scales the loss").one_of({"off", "fp16", "bf16"});
  options.add("--loss-scale", scaling_.initial, "the first one, in fp16: too large costs a skipped step per halving, too small loses gradients").positive();
}

at::ScalarType Amp::dtype() const { return name_ == "fp16" ? at::kHalf : name_ == "bf16" ? at::kBFloat16 : at::kFloat; }

std::string Amp::dtype_name() const { return name_ == "fp16" ? "float16" : name_ == "bf16" ? "bfloat16" : "float32"; }

Autocast::Autocast(const Amp& amp, at::DeviceType device) : on_(amp.on()), device_(device) {
  if (!on_) return;
  before_ = at::autocast::is_autocast_enabled(device_);
  dtype_before_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, amp.dtype());
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!on_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace manyranks
