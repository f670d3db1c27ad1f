#include "contenders.hpp"

#include <cstring>

#include "launch/errors.hpp"
#include "measure/timer.hpp"  // WallTimer

namespace manyranks {

const std::vector<std::pair<std::string, Collective>>& collectives() {
  static const std::vector<std::pair<std::string, Collective>> all{
      {"all_reduce", Collective::all_reduce}, {"all_gather", Collective::all_gather}, {"reduce_scatter", Collective::reduce_scatter},
      {"broadcast", Collective::broadcast},   {"reduce", Collective::reduce},         {"gather", Collective::gather},
      {"scatter", Collective::scatter},       {"all_to_all", Collective::all_to_all}, {"send_recv", Collective::send_recv}};
  return all;
}

std::string name_of(Collective collective) {
  for (const auto& [name, value] : collectives())
    if (value == collective) return name;
  throw usage_error("bench_collectives", "no such collective");
}

Shapes shapes(Collective collective, int64_t count, int ranks) {
  switch (collective) {
    case Collective::all_gather:
    case Collective::gather: return {count / ranks, count};
    case Collective::reduce_scatter:
    case Collective::scatter: return {count, count / ranks};
    default: return {count, count};
  }
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::all_reduce: return 2 * (n - 1) / n;
    case Collective::broadcast:
    case Collective::reduce:
    case Collective::send_recv: return 1;
    default: return (n - 1) / n;
  }
}

double Contender::seconds(Collective collective, torch::Tensor out, torch::Tensor in, int64_t iterations) {
  WallTimer timer;
  for (int64_t i = 0; i < iterations; ++i) run(collective, out, in);
  return timer.seconds();
}

namespace {

class Copies : public Contender {
 public:
  std::string name() const override { return copy_bound_name; }
  std::string transport() const override { return "none"; }
  bool can(Collective collective, bool in_place) const override { return collective == Collective::all_reduce && !in_place; }
  void run(Collective, torch::Tensor out, torch::Tensor in) override { std::memcpy(out.data_ptr(), in.data_ptr(), in.nbytes()); }
  std::optional<int64_t> wrong(Collective, int64_t) override { return 0; }  // a bound, no result
};

class Ours : public Contender {
 public:
  Ours(Communicator& world, bool registered) : world_(world), registered_(registered) {}
  std::string name() const override { return registered_ ? "ours, registered" : "ours"; }
  std::string transport() const override { return world_.transport(); }
  // Like nccl-tests: nothing is sent in place to all, or to a neighbour.
  bool can(Collective collective, bool in_place) const override { return !in_place || (collective != Collective::all_to_all && collective != Collective::send_recv); }
  bool registered() const override { return registered_; }

  void run(Collective collective, torch::Tensor out, torch::Tensor in) override {
    const int next = (world_.rank() + 1) % world_.size(), previous = (world_.rank() + world_.size() - 1) % world_.size();
    switch (collective) {
      case Collective::all_reduce: return world_.all_reduce(out, in);
      case Collective::all_gather: return world_.all_gather(out, in);
      case Collective::reduce_scatter: return world_.reduce_scatter(out, in);
      case Collective::broadcast: return world_.broadcast(out, 0);
      case Collective::reduce: return world_.reduce(out, in, 0);
      case Collective::gather: return world_.gather(out, in, 0);
      case Collective::scatter: return world_.scatter(out, in, 0);
      case Collective::all_to_all: return world_.all_to_all(out, in);
      case Collective::send_recv: {
        Work send = world_.send_async(in, next), receive = world_.recv_async(out, previous);
        send.wait();
        receive.wait();
      }
    }
  }

 private:
  Communicator& world_;
  bool registered_;
};

}  // namespace

std::vector<std::unique_ptr<Contender>> copy_bound() {
  std::vector<std::unique_ptr<Contender>> list;
  list.push_back(std::make_unique<Copies>());
  return list;
}

std::vector<std::unique_ptr<Contender>> our_contenders(Communicator& world) {
  std::vector<std::unique_ptr<Contender>> list;
  list.push_back(std::make_unique<Ours>(world, false));
  list.push_back(std::make_unique<Ours>(world, true));
  return list;
}

}  // namespace manyranks
