#include "train/grad_scaler.hpp"

#include <fmt/format.h>

#include <cmath>

#include "launch/errors.hpp"

namespace manyranks {

GradScaler::GradScaler(ScalerOptions options) : options_(options), scale_(options.initial) {
  if (!(options.initial > 0 && std::isfinite(options.initial) && options.growth > 1 && options.backoff > 0 && options.backoff < 1 && options.interval > 0))
    throw usage_error("grad scaler", "wants a finite initial > 0, growth > 1, 0 < backoff < 1 and interval > 0");
}

void GradScaler::update(bool overflow) {
  if (overflow) {
    ++skipped_;
    good_steps_ = 0;
    scale_ = static_cast<float>(static_cast<double>(scale_) * options_.backoff);
    // Some 140 halvings below the default: what overflows at every scale is no overflow.
    if (!std::isfinite(inverse())) throw disagree_error("grad scaler", fmt::format("the loss scale fell to nothing in {} skipped steps: there is a NaN in the model", skipped_), "bf16, which needs no scale, to see where it comes from");
    return;
  }
  if (++good_steps_ < options_.interval) return;
  good_steps_ = 0;
  const auto grown = static_cast<float>(static_cast<double>(scale_) * options_.growth);
  if (std::isfinite(grown)) scale_ = grown;
}

}  // namespace manyranks
