// Gloo's own ring over TCP: what PyTorch uses between CPUs. Through our module, since its symbols clash with those in LibTorch.
#include "comm/gloo_wire.hpp"
#include "contenders.hpp"
#include "launch/process.hpp"

namespace manyranks {
namespace {

class Gloo : public Contender {
 public:
  explicit Gloo(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  std::string name() const override { return "Gloo"; }
  std::string transport() const override { return wire_->name(); }
  bool can(Collective collective, bool) const override { return collective == Collective::all_reduce; }
  void run(Collective, torch::Tensor out, torch::Tensor in) override {
    if (!out.is_same(in)) out.copy_(in);  // it works in place
    gloo_all_reduce(*wire_, out.data_ptr<float>(), static_cast<size_t>(out.numel()));
  }

 private:
  std::shared_ptr<Wire> wire_;
};

}  // namespace

std::vector<std::unique_ptr<Contender>> gloo_contenders(Process& process) {
  std::vector<std::unique_ptr<Contender>> list;
  if (const std::string missing = gloo_missing(); !missing.empty()) {
    if (process.is_root()) fmt::print("without Gloo: {}\n", missing);
    return list;
  }
  // An address that all ranks can reach tells Gloo which of a host's networks to use.
  const std::string master = process.nodes() > 1 ? process.hosts()[0] : "";
  list.push_back(std::make_unique<Gloo>(make_gloo_wire(process.rank(), process.world_size(), master, process.options().timeout_s,
                                                       [&](const std::string& mine) { return process.rendezvous().all_gather(mine); })));
  return list;
}

}  // namespace manyranks
