// torch.distributed over Gloo, what people use today between CPUs: gloo_peer.py in a process beside each rank, driven through two pipes.
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "contenders.hpp"
#include "launch/process.hpp"
#include "measure/line_peer.hpp"  // LinePeer

namespace manyranks {
namespace {

class PyTorchGloo : public Contender {
 public:
  explicit PyTorchGloo(std::unique_ptr<LinePeer> peer) : peer_(std::move(peer)) {}
  std::string name() const override { return pytorch_contender_name; }
  std::string transport() const override { return "Gloo (tcp)"; }
  bool can(Collective collective, bool in_place) const override { return collective == Collective::all_reduce && in_place; }
  void run(Collective collective, torch::Tensor out, torch::Tensor in) override { seconds(collective, out, in, 1); }
  double seconds(Collective, torch::Tensor out, torch::Tensor, int64_t iterations) override {
    return std::stod(peer_->ask(fmt::format("run {} {}", out.numel(), iterations)));
  }
  std::optional<int64_t> wrong(Collective, int64_t count) override { return std::stoll(peer_->ask(fmt::format("check {}", count))); }

 private:
  std::unique_ptr<LinePeer> peer_;
};

}  // namespace

std::vector<std::unique_ptr<Contender>> pytorch_contenders(Process& process) {
  std::vector<std::unique_ptr<Contender>> list;
  const auto without = [&](const std::string& why) {
    if (process.is_root()) fmt::print("without PyTorch's Gloo: {}\n", why);
    return std::move(list);
  };
  if (process.nodes() > 1) return without("more than one node");
  char folder[] = "/tmp/manyranks-gloo-XXXXXX";  // where the ranks of torch.distributed find each other
  if (process.is_root() && !mkdtemp(folder)) throw io_error("mkdtemp", std::strerror(errno));
  const std::string meeting = process.rendezvous().all_gather(folder)[0];
  auto peer = std::make_unique<LinePeer>(std::vector<std::string>{MANYRANKS_PYTHON, MANYRANKS_GLOO_PEER, meeting + "/store", std::to_string(process.rank()), std::to_string(process.world_size())},
                                         std::vector<std::string>{}, process.options().timeout_s);
  const std::string said = peer->answer();
  bool all = true;
  for (const auto& other : process.rendezvous().all_gather(said)) all = all && other.rfind("ready", 0) == 0;
  if (process.is_root()) unlink((meeting + "/store").c_str()), rmdir(meeting.c_str());
  if (!all) return without(said.empty() ? "gloo_peer.py did not start; ./scripts/setup.sh --rivals" : said);
  list.push_back(std::make_unique<PyTorchGloo>(std::move(peer)));
  return list;
}

}  // namespace manyranks
