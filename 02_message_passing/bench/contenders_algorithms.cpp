// Our algorithms one by one, over bare MPI messages: what the choice of algorithm alone is worth.
#include "../mpi_transport.hpp"
#include "contenders.hpp"

namespace manyranks {
namespace {

class Algorithm : public Contender {
 public:
  using Run = std::function<void(const Buffer&)>;
  Algorithm(std::string name, Run run) : name_(std::move(name)), run_(std::move(run)) {}
  std::string name() const override { return name_; }
  std::string transport() const override { return "MPI messages"; }
  bool can(Collective collective, bool) const override { return collective == Collective::all_reduce; }
  void run(Collective, torch::Tensor out, torch::Tensor in) override {
    if (!out.is_same(in)) out.copy_(in);  // they all work in place
    run_(Buffer{out.data_ptr(), static_cast<size_t>(out.numel()), Dtype::float32});
  }

 private:
  std::string name_;
  Run run_;
};

}  // namespace

std::vector<std::unique_ptr<Contender>> algorithm_contenders(const Process& process) {
  // Shared by the four, and kept as long as one of them lives.
  struct Links {
    explicit Links(const Process& process) : mpi(process), net(mpi.world), levels(mpi, process.local_size()) {}
    RawMpi mpi;
    MpiTransport net;
    TwoLevel levels;
  };
  const auto links = std::make_shared<Links>(process);
  std::vector<std::unique_ptr<Contender>> list;
  const auto add = [&](const char* name, Algorithm::Run run) { list.push_back(std::make_unique<Algorithm>(name, std::move(run))); };
  add("algorithm: ring", [links](const Buffer& b) { ring_all_reduce(links->net, b, ReduceOp::sum); });
  add("algorithm: recursive doubling", [links](const Buffer& b) { recursive_doubling_all_reduce(links->net, b, ReduceOp::sum); });
  add("algorithm: Rabenseifner", [links](const Buffer& b) { rabenseifner_all_reduce(links->net, b, ReduceOp::sum); });
  add("algorithm: two-level", [links](const Buffer& b) { two_level_all_reduce(*links->levels.inner, *links->levels.outer, b, ReduceOp::sum); });
  return list;
}

}  // namespace manyranks
