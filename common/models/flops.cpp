#include "models/flops.hpp"

#include <ATen/record_function.h>

#include <string_view>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

// A counted operator may call another (linear calls addmm): only the outermost counts.
struct Count {
  double flops = 0;
  int depth = 0;
};
thread_local Count* current = nullptr;

bool is_counted(std::string_view name) {
  return name == "aten::linear" || name == "aten::conv2d" || name == "aten::matmul" || name == "aten::bmm" || name == "aten::mm" ||
         name == "aten::addmm" || name == "aten::scaled_dot_product_attention";
}

const at::Tensor& tensor_input(const at::RecordFunction& call, size_t i) { return call.inputs()[i].toTensor(); }

// Multiply-adds for each element of the result.
int64_t depth_of_product(const at::RecordFunction& call, std::string_view name) {
  if (name == "aten::conv2d") {  // weight (out, in/groups, k, k)
    const at::Tensor& weight = tensor_input(call, 1);
    return weight.numel() / weight.size(0);
  }
  if (name == "aten::scaled_dot_product_attention") {  // q (N, h, T, d), k (N, h, S, d): scores, then the weighted sum
    return 2 * tensor_input(call, 1).size(-2);
  }
  return tensor_input(call, name == "aten::addmm" ? 1 : 0).size(-1);
}

// Inputs are there only when a call starts, its result only when it ends: this carries one to the other.
struct Pending : at::ObserverContext {
  explicit Pending(int64_t product) : product(product) {}
  int64_t product;
};

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& call) {
  if (current == nullptr || !is_counted(call.name())) return nullptr;
  if (current->depth++ > 0) return std::make_unique<Pending>(0);
  return std::make_unique<Pending>(depth_of_product(call, call.name()));
}

void on_end(const at::RecordFunction& call, at::ObserverContext* context) {
  if (current == nullptr || context == nullptr) return;
  --current->depth;
  const auto product = static_cast<double>(static_cast<Pending*>(context)->product);
  if (product > 0) current->flops += 2 * product * static_cast<double>(call.outputs()[0].toTensor().numel());
}

// Keeps the observer registered only as long as it counts, also when the counted code throws.
class Observer {
 public:
  explicit Observer(Count& count)
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))),
        outer_(current) {
    current = &count;
  }
  ~Observer() {
    current = outer_;
    at::removeCallback(handle_);
  }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

 private:
  at::CallbackHandle handle_;
  Count* outer_;
};

}  // namespace

double count_flops(const std::function<void()>& body) {
  Count count;
  const Observer observer(count);
  body();
  return count.flops;
}

double forward_flops(Model& model, const torch::Tensor& input) {
  torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();  // statistics of batch norm stay as they are, and a batch of one is allowed
  const double flops = count_flops([&] { model.forward(input); });
  model.train(was_training);
  return flops;
}

double gpt_train_flops_per_token(const Model& model) {
  if (!model.is_language()) throw usage_error("gpt_train_flops_per_token", "'" + model.kind() + "' is not a gpt");
  const ModelShape& shape = model.shape();
  const auto lookups = static_cast<double>(shape.width * (shape.context + (shape.tie_weights ? 0 : shape.vocab)));
  const double in_products = static_cast<double>(parameter_count(model)) - lookups;
  return 6 * in_products + 6 * static_cast<double>(shape.layers * shape.width * shape.context);
}

double train_flops_per_sample(Model& model) {
  if (model.is_language()) return gpt_train_flops_per_token(model) * static_cast<double>(model.shape().context);
  const ModelShape& shape = model.shape();  // zeros, not example_input(): counting must not move the random numbers
  const auto options = torch::TensorOptions().device(model.parameters().front().device());
  return 3 * forward_flops(model, torch::zeros({1, shape.channels, shape.image, shape.image}, options));
}

}  // namespace manyranks
