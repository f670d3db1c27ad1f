#include "launch/torch.hpp"
#include "parallel/sync_batch_norm.hpp"

#include "comm/communicator.hpp"
#include "models/batch_norm.hpp"

namespace manyranks {
namespace {

// y = sum over ranks of x. Every rank's y depends on every rank's x, so the gradient of x is the sum over ranks of that of y: the
// adjoint of an all-reduce is an all-reduce.
class SumOverRanks : public torch::autograd::Function<SumOverRanks> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, int64_t communicator) {
    context->saved_data["communicator"] = communicator;
    return sum(x, communicator);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    return {sum(gradients[0], context->saved_data["communicator"].toInt()), torch::Tensor()};
  }

 private:
  static torch::Tensor sum(const torch::Tensor& x, int64_t communicator) {
    torch::Tensor all = x.detach().contiguous().clone();
    reinterpret_cast<Communicator*>(communicator)->all_reduce(all);
    return all;
  }
};

template <class Body>
void for_each_batch_norm(torch::nn::Module& module, Body&& body) {
  for (const auto& child : module.modules())
    if (auto* layer = dynamic_cast<BatchNormImpl*>(child.get())) body(*layer);
}

}  // namespace

SyncBatchNorm::SyncBatchNorm(Communicator& world, torch::nn::Module& module) : module_(module), among_layers_(world.split(0, world.rank())) {
  const auto address = reinterpret_cast<int64_t>(among_layers_.get());
  for_each_batch_norm(module_, [&](BatchNormImpl& layer) {
    layer.sum_over_ranks = [address](const torch::Tensor& row) { return SumOverRanks::apply(row, address); };
    ++layers_;
  });
}

SyncBatchNorm::~SyncBatchNorm() {
  for_each_batch_norm(module_, [](BatchNormImpl& layer) { layer.sum_over_ranks = nullptr; });
}

}  // namespace manyranks
