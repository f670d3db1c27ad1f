#include "counted_ranks.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "memory_meter.hpp"  // Metered

namespace manyranks {

namespace {
constexpr int data_tag = 71, receipt_tag = 72;
torch::Tensor view(std::span<const float> data) {
  return torch::from_blob(const_cast<float*>(data.data()), {static_cast<int64_t>(data.size())}, torch::kFloat32);
}
}  // namespace

// A letter is the sender's clock and the numbers; the answer is a receipt with the receiver's clock. So send() waits for the receiver,
// and both learn the length of the chain that led here.
torch::Tensor CountedRanks::letter(std::span<const float> data) const {
  auto out = torch::empty({static_cast<int64_t>(data.size()) + 1}, torch::kFloat32);
  out[0] = static_cast<float>(counts_.rounds);
  out.narrow(0, 1, out.numel() - 1).copy_(view(data));
  return out.to(device_);
}

void CountedRanks::take(const torch::Tensor& letter, std::span<float> data) {
  const auto here = letter.cpu();
  view(data).copy_(here.narrow(0, 1, here.numel() - 1));
  counts_.rounds = std::max<int64_t>(counts_.rounds, static_cast<int64_t>(here[0].item<float>()));
}

void CountedRanks::check_peer(const char* call, int peer) const {
  if (peer < 0 || peer >= size()) throw std::runtime_error(fmt::format("{} with rank {}, but ranks go from 0 to {}", call, peer, size() - 1));
}

void CountedRanks::count_message(int to, size_t elements) {
  ++counts_.messages;
  counts_.bytes_sent += static_cast<int64_t>(4 * elements);
  counts_.sent_to.push_back(to);
}

void CountedRanks::send(int to, std::span<const float> data) {
  const Metered::Pause pause;
  check_peer("send", to);
  if (to == rank()) throw std::runtime_error("send to myself waits for ever: I cannot receive while I send");
  world_.send(letter(data), to, data_tag);
  const auto receipt = torch::empty({1}, torch::TensorOptions(device_));
  world_.recv(receipt, to, receipt_tag);
  counts_.rounds = std::max(counts_.rounds + 1, static_cast<int64_t>(receipt.cpu()[0].item<float>()));
  count_message(to, data.size());
}

void CountedRanks::recv(int from, std::span<float> data) {
  const Metered::Pause pause;
  check_peer("recv", from);
  if (from == rank()) throw std::runtime_error("recv from myself waits for ever: I cannot send while I receive");
  const auto arrived = torch::empty({static_cast<int64_t>(data.size()) + 1}, torch::TensorOptions(device_));
  world_.recv(arrived, from, data_tag);
  take(arrived, data);
  ++counts_.rounds;
  world_.send(torch::full({1}, static_cast<float>(counts_.rounds), torch::TensorOptions(device_)), from, receipt_tag);
}

void CountedRanks::send_recv(int to, std::span<const float> out, int from, std::span<float> in) {
  const Metered::Pause pause;
  check_peer("send_recv", to);
  check_peer("send_recv", from);
  if ((to == rank()) != (from == rank())) throw std::runtime_error("send_recv with myself and another: one half would wait for ever");
  if (to == rank()) {
    if (out.size() != in.size()) throw std::runtime_error(fmt::format("send_recv with myself: {} numbers out, {} in", out.size(), in.size()));
    view(in).copy_(view(out).clone());
    ++counts_.rounds;
    return count_message(to, out.size());
  }
  const auto arrived = torch::empty({static_cast<int64_t>(in.size()) + 1}, torch::TensorOptions(device_));
  Work sent = world_.send_async(letter(out), to, data_tag), received = world_.recv_async(arrived, from, data_tag);
  received.wait();
  take(arrived, in);
  Work answered = world_.send_async(torch::full({1}, static_cast<float>(counts_.rounds + 1), torch::TensorOptions(device_)), from, receipt_tag);
  sent.wait();
  const auto receipt = torch::empty({1}, torch::TensorOptions(device_));
  world_.recv(receipt, to, receipt_tag);
  answered.wait();
  counts_.rounds = std::max(counts_.rounds + 1, static_cast<int64_t>(receipt.cpu()[0].item<float>()));
  count_message(to, out.size());
}

void CountedRanks::collective(std::span<float> out, std::span<const float> in, const std::function<void(torch::Tensor, torch::Tensor)>& call) {
  const Metered::Pause pause;
  const int64_t before = world_.traffic().bytes_sent;
  // To the device and back, on a CPU too: one way for both. A tensor of its own each, so that `in` may lie inside `out`.
  const auto carried = [&](std::span<const float> data) { return view(data).to(device_, torch::kFloat32, /*non_blocking=*/false, /*copy=*/true); };
  const auto there = carried(out);
  call(there, out.data() == in.data() && out.size() == in.size() ? there : carried(in));
  view(out).copy_(there);
  counts_.bytes_sent += world_.traffic().bytes_sent - before;
  ++counts_.collectives;
}

void CountedRanks::all_reduce(std::span<float> data) {
  collective(data, data, [&](auto out, auto) { world_.all_reduce(out); });
  ++counts_.all_reduces;
}
void CountedRanks::all_reduce_max(std::span<float> data) {
  collective(data, data, [&](auto out, auto) { world_.all_reduce(out, ReduceOp::max); });
  ++counts_.all_reduces;
}
void CountedRanks::reduce_scatter(std::span<float> out, std::span<const float> in) {
  collective(out, in, [&](auto to, auto from) { world_.reduce_scatter(to, from); });
}
void CountedRanks::all_gather(std::span<float> out, std::span<const float> in) {
  collective(out, in, [&](auto to, auto from) { world_.all_gather(to, from); });
}
void CountedRanks::broadcast(std::span<float> data, int root) {
  check_peer("broadcast", root);
  collective(data, data, [&](auto out, auto) { world_.broadcast(out, root); });
}

}  // namespace manyranks
