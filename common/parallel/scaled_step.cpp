#include "parallel/scaled_step.hpp"

#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "train/guarded.hpp"  // squared_norm

namespace manyranks {

// What the optimisers of one model share: their gradients, and the decision about this step.
class ScaledStep::Group {
 public:
  Group(Communicator& world, bool scales, ScalerOptions options) : world_(world), scales(scales), scaler(options) {}

  void add(const torch::Tensor& gradients) { gradients_.push_back(gradients); }

  // The factor for this step's gradients, or nothing if it is to be skipped.
  std::optional<double> ask() {
    if (asked_ == 0) decide();
    const std::optional<double> answer = stepped ? std::optional(static_cast<double>(factor_)) : std::nullopt;
    if (++asked_ == gradients_.size()) {
      asked_ = 0;
      scaler.update(!stepped);
    }
    return answer;
  }

 private:
  void decide() {
    // Not finite exactly if an element is not. Where all ranks hold the same sums they would find the same alone; where each holds a
    // shard or a part of the model, only one of them sees the infinity. Squares do not cancel: what is not finite stays so in the sum, and
    // a GPU is waited for once, for one number.
    torch::Tensor squares = squared_norm(gradients_.front());
    for (size_t i = 1; i < gradients_.size(); ++i) squares += squared_norm(gradients_[i]);
    auto overflow = squares.isfinite().logical_not().to(torch::kDouble);
    world_.all_reduce(overflow, ReduceOp::max);
    stepped = overflow.item<double>() == 0;
    factor_ = scaler.inverse();  // of the scale that this step's loss had
  }

  Communicator& world_;
  std::vector<torch::Tensor> gradients_;
  size_t asked_ = 0;
  float factor_ = 1.0F;

 public:
  bool scales, stepped = true;
  GradScaler scaler;
};

class ScaledStep::Member : public Optimizer {
 public:
  Member(std::shared_ptr<Group> group, std::unique_ptr<Optimizer> inner, const torch::Tensor& parameters, const torch::Tensor& gradients)
      : Optimizer(parameters, gradients), group_(std::move(group)), inner_(std::move(inner)) {
    group_->add(gradients);
  }

  // The count of steps lives here, where a checkpoint sets it; a skipped step is none, or Adam would correct its means for it.
  void step(double learning_rate, double gradient_scale) override {
    const std::optional<double> factor = group_->ask();
    if (!factor) return;
    inner_->set_steps_done(steps_done_);
    inner_->step(learning_rate, gradient_scale * *factor);
    steps_done_ = inner_->steps_done();
  }
  NamedTensors state() const override { return inner_->state(); }

 private:
  std::shared_ptr<Group> group_;
  std::unique_ptr<Optimizer> inner_;
};

ScaledStep::ScaledStep(Communicator& world, const Amp& amp, ScalerOptions options) : group_(std::make_shared<Group>(world, amp.scales_loss(), options)) {}
ScaledStep::~ScaledStep() = default;

torch::Tensor ScaledStep::scale(const torch::Tensor& loss) const { return group_->scales ? loss * group_->scaler.scale() : loss; }

MakeOptimizer ScaledStep::wrap(MakeOptimizer make) {
  if (!group_->scales) return make;
  return [group = group_, make = std::move(make)](torch::Tensor parameters, torch::Tensor gradients) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Member>(group, make(parameters, gradients), parameters, gradients);
  };
}

bool ScaledStep::stepped() const { return group_->stepped; }
const GradScaler& ScaledStep::scaler() const { return group_->scaler; }
GradScaler& ScaledStep::scaler() { return group_->scaler; }

}  // namespace manyranks
