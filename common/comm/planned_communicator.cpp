#include "comm/planned_communicator.hpp"

#include "comm/group.hpp"  // ExchangeShape
#include "launch/errors.hpp"

namespace manyranks {

std::optional<Dtype> dtype_of(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32: return Dtype::float32;
    case torch::kFloat64: return Dtype::float64;
    case torch::kFloat16: return Dtype::float16;
    case torch::kBFloat16: return Dtype::bfloat16;
    case torch::kInt32: return Dtype::int32;
    case torch::kInt64: return Dtype::int64;
    case torch::kUInt8: return Dtype::uint8;
    case torch::kBool: return Dtype::boolean;
    default: return std::nullopt;
  }
}

namespace {

struct View {
  std::byte* data = nullptr;
  size_t count = 0;
  Dtype dtype = Dtype::uint8;
};

[[noreturn]] void refuse(Operation operation, const std::string& cause, const std::string& hint = "") { throw usage_error(name_of(operation), cause, hint); }

View view(Operation operation, const char* what, const torch::Tensor& tensor, torch::Device device) {
  if (!tensor.defined()) refuse(operation, fmt::format("`{}` is an undefined tensor", what));
  if (tensor.device() != device) refuse(operation, fmt::format("`{}` is on {}, this communicator moves tensors on {}", what, tensor.device().str(), device.str()));
  if (!tensor.is_contiguous()) refuse(operation, fmt::format("`{}` is not contiguous", what), "tensor.contiguous()");
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) refuse(operation, fmt::format("`{}` has dtype {}, which no backend moves", what, c10::toString(tensor.scalar_type())));
  return {static_cast<std::byte*>(tensor.unsafeGetTensorImpl()->mutable_data()), static_cast<size_t>(tensor.numel()), *dtype};
}

void check_same_dtype(Operation operation, const View& out, const View& in) {
  if (out.dtype != in.dtype) refuse(operation, fmt::format("`out` is {}, `in` is {}", name_of(out.dtype), name_of(in.dtype)));
}

// `allowed`: where `in` may lie relative to `out`, or `out` to `in`.
void check_overlap(Operation operation, const View& out, const View& in, const std::byte* allowed_begin, const std::byte* actual_begin) {
  const size_t element = size_of(out.dtype);
  const bool apart = out.data + out.count * element <= in.data || in.data + in.count * element <= out.data;
  if (!apart && allowed_begin != actual_begin) refuse(operation, "`out` and `in` overlap", "the same tensor for both, or two that are apart");
}

}  // namespace

void PlannedCommunicator::check_peer(Operation operation, int peer) const {
  if (peer < 0 || peer >= size_) refuse(operation, fmt::format("there is no rank {} in '{}' of {} ranks", peer, name_, size_));
}

Plan PlannedCommunicator::plan_reduce(Operation operation, const torch::Tensor& out_tensor, const torch::Tensor& in_tensor, int root, ReduceOp op) {
  check_peer(operation, root);
  const View in = view(operation, "in", in_tensor, device_);
  Plan plan{operation, nullptr, in.data, in.count, in.dtype, op, root, 0};
  if (operation == Operation::reduce && rank_ != root) return plan;  // `out` may be undefined
  if (out_tensor.unsafeGetTensorImpl() == in_tensor.unsafeGetTensorImpl() && operation != Operation::reduce_scatter) {
    plan.out = in.data;
    return plan;
  }
  const View out = view(operation, "out", out_tensor, device_);
  check_same_dtype(operation, out, in);
  plan.out = out.data;
  const size_t parts = operation == Operation::reduce_scatter ? size_ : 1;
  plan.count = out.count;
  if (in.count != out.count * parts)
    refuse(operation, fmt::format("`in` has {} elements, `out` {}: expected {} x {}", in.count, out.count, parts, out.count));
  check_overlap(operation, out, in, in.data + (parts > 1 ? rank_ * out.count * size_of(in.dtype) : 0), out.data);
  return plan;
}

Plan PlannedCommunicator::plan_exchange(Operation operation, const torch::Tensor& out_tensor, const torch::Tensor& in_tensor, int root) {
  check_peer(operation, root);
  const ExchangeShape shape(operation, root);
  const size_t in_parts = shape.own_part_per_taker() ? size_ : 1, out_parts = shape.own_part_per_giver() ? size_ : 1;
  Plan plan;
  plan.operation = operation, plan.root = root;
  View in, out;
  if (shape.gives(rank_)) {
    in = view(operation, "in", in_tensor, device_);
    if (in.count % in_parts) refuse(operation, fmt::format("`in` has {} elements, which {} ranks cannot share evenly", in.count, size_));
    plan.in = in.data, plan.count = in.count / in_parts, plan.dtype = in.dtype;
  }
  if (shape.takes(rank_)) {
    out = view(operation, "out", out_tensor, device_);
    if (out.count % out_parts) refuse(operation, fmt::format("`out` has {} elements, which {} ranks cannot share evenly", out.count, size_));
    plan.out = out.data, plan.dtype = out.dtype;
    if (!shape.gives(rank_)) plan.count = out.count / out_parts;
  }
  if (shape.gives(rank_) && shape.takes(rank_)) {
    check_same_dtype(operation, out, in);
    if (in.count * out_parts != out.count * in_parts)
      refuse(operation, fmt::format("`in` has {} elements, `out` {}: parts of {} and of {}", in.count, out.count, in.count / in_parts, out.count / out_parts));
    const size_t part = plan.count * size_of(plan.dtype);
    if (operation == Operation::all_to_all) check_overlap(operation, out, in, nullptr, out.data);
    else check_overlap(operation, out, in, out.data + shape.out_part(rank_) * part, in.data + shape.in_part(rank_) * part);
  }
  return plan;
}

Plan PlannedCommunicator::plan_message(Operation operation, const torch::Tensor& tensor, int peer, int tag) {
  check_peer(operation, peer);
  const View data = view(operation, operation == Operation::send ? "in" : "out", tensor, device_);
  return Plan{operation, data.data, data.data, data.count, data.dtype, ReduceOp::sum, peer, tag};
}

Work PlannedCommunicator::begin(const Plan& plan, const torch::Tensor& out, const torch::Tensor& in) {
  count(plan.operation);
  return start(plan, out, in);
}

// The blocking and the asynchronous form of each, from one plan.
#define MANYRANKS_CALL(plan_)            \
  const Plan plan = plan_;               \
  count(plan.operation);                 \
  run(plan);

void PlannedCommunicator::all_reduce(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) { MANYRANKS_CALL(plan_reduce(Operation::all_reduce, out, in, 0, op)) }
void PlannedCommunicator::reduce_scatter(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) { MANYRANKS_CALL(plan_reduce(Operation::reduce_scatter, out, in, 0, op)) }
void PlannedCommunicator::reduce(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op) { MANYRANKS_CALL(plan_reduce(Operation::reduce, out, in, root, op)) }
void PlannedCommunicator::all_gather(const torch::Tensor& out, const torch::Tensor& in) { MANYRANKS_CALL(plan_exchange(Operation::all_gather, out, in, 0)) }
void PlannedCommunicator::broadcast(const torch::Tensor& inout, int root) { MANYRANKS_CALL(plan_exchange(Operation::broadcast, inout, inout, root)) }
void PlannedCommunicator::gather(const torch::Tensor& out, const torch::Tensor& in, int root) { MANYRANKS_CALL(plan_exchange(Operation::gather, out, in, root)) }
void PlannedCommunicator::scatter(const torch::Tensor& out, const torch::Tensor& in, int root) { MANYRANKS_CALL(plan_exchange(Operation::scatter, out, in, root)) }
void PlannedCommunicator::all_to_all(const torch::Tensor& out, const torch::Tensor& in) { MANYRANKS_CALL(plan_exchange(Operation::all_to_all, out, in, 0)) }
void PlannedCommunicator::send(const torch::Tensor& in, int to, int tag) { MANYRANKS_CALL(plan_message(Operation::send, in, to, tag)) }
void PlannedCommunicator::recv(const torch::Tensor& out, int from, int tag) { MANYRANKS_CALL(plan_message(Operation::recv, out, from, tag)) }
#undef MANYRANKS_CALL

Work PlannedCommunicator::all_reduce_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) { return begin(plan_reduce(Operation::all_reduce, out, in, 0, op), out, in); }
Work PlannedCommunicator::reduce_scatter_async(const torch::Tensor& out, const torch::Tensor& in, ReduceOp op) { return begin(plan_reduce(Operation::reduce_scatter, out, in, 0, op), out, in); }
Work PlannedCommunicator::reduce_async(const torch::Tensor& out, const torch::Tensor& in, int root, ReduceOp op) { return begin(plan_reduce(Operation::reduce, out, in, root, op), out, in); }
Work PlannedCommunicator::all_gather_async(const torch::Tensor& out, const torch::Tensor& in) { return begin(plan_exchange(Operation::all_gather, out, in, 0), out, in); }
Work PlannedCommunicator::broadcast_async(const torch::Tensor& inout, int root) { return begin(plan_exchange(Operation::broadcast, inout, inout, root), inout, inout); }
Work PlannedCommunicator::gather_async(const torch::Tensor& out, const torch::Tensor& in, int root) { return begin(plan_exchange(Operation::gather, out, in, root), out, in); }
Work PlannedCommunicator::scatter_async(const torch::Tensor& out, const torch::Tensor& in, int root) { return begin(plan_exchange(Operation::scatter, out, in, root), out, in); }
Work PlannedCommunicator::all_to_all_async(const torch::Tensor& out, const torch::Tensor& in) { return begin(plan_exchange(Operation::all_to_all, out, in, 0), out, in); }

Work PlannedCommunicator::send_async(const torch::Tensor& in, int to, int tag) { return begin(plan_message(Operation::send, in, to, tag), in, in); }
Work PlannedCommunicator::recv_async(const torch::Tensor& out, int from, int tag) { return begin(plan_message(Operation::recv, out, from, tag), out, out); }

void PlannedCommunicator::add_calls(Traffic& traffic) const {
  for (size_t i = 0; i < calls_.size(); ++i) {
    const int64_t calls = calls_[i].load(std::memory_order_relaxed);
    traffic.calls += calls;
    if (calls) traffic.calls_by_operation[name_of(static_cast<Operation>(i))] = calls;
  }
}

void PlannedCommunicator::reset_calls() {
  for (auto& calls : calls_) calls = 0;
}

}  // namespace manyranks
