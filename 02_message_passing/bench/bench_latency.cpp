// What one message costs: half round trip, bandwidth one way and both ways, message rate; 0 B to 4 MiB.
//
// Run it      mpirun -np 2 build/02_message_passing/bench_latency
//             mpirun -np 4 build/02_message_passing/bench_latency --csv latency.csv      (2 pairs at once: 0-2, 1-3)
//             ./scripts/two_nodes.sh --rate 1gbit build/02_message_passing/bench_latency
// Definitions (those of the OSU benchmarks)
//   latency         half of the time of a message there and back
//   bandwidth       a window of 64 messages one way, then one short answer: bytes / time, added over pairs
//   bidirectional   both sides send a window at once: bytes of both / time
//   message rate    messages / time, from the bandwidth run
// MPI's calls and our Communicator's are measured in turn, sample by sample, and reported as medians.
#include <algorithm>
#include <numeric>

#include "../raw_mpi.hpp"            // RawMpi, CHECK_MPI
#include "comm/communicator.hpp"     // Communicator, Work
#include "measure/provenance.hpp"    // Row, fill, write_row
#include "measure/statistics.hpp"    // median, quantile
#include "measure/table.hpp"         // Table, format_bytes
#include "measure/timer.hpp"         // WallTimer

using namespace manyranks;

namespace {

constexpr int window = 64;

// The least that the four measurements need: blocking send and receive, and a window of immediate ones.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual const char* name() const = 0;
  virtual bool carries(int64_t bytes) const = 0;
  virtual void send(int64_t bytes) = 0;
  virtual void receive(int64_t bytes) = 0;
  virtual void start_send(int64_t bytes) = 0;
  virtual void start_receive(int64_t bytes) = 0;
  virtual void wait_all() = 0;
  virtual void describe(Row& row) const = 0;
};

class MpiWire : public Wire {
 public:
  MpiWire(MPI_Comm comm, int peer, torch::Tensor out, torch::Tensor in) : comm_(comm), peer_(peer), out_(out.data_ptr()), in_(in.data_ptr()) {}
  const char* name() const override { return "MPI"; }
  bool carries(int64_t) const override { return true; }
  void send(int64_t bytes) override { CHECK_MPI(MPI_Send(out_, static_cast<int>(bytes), MPI_BYTE, peer_, 0, comm_)); }
  void receive(int64_t bytes) override { CHECK_MPI(MPI_Recv(in_, static_cast<int>(bytes), MPI_BYTE, peer_, 0, comm_, MPI_STATUS_IGNORE)); }
  void start_send(int64_t bytes) override {
    CHECK_MPI(MPI_Isend(out_, static_cast<int>(bytes), MPI_BYTE, peer_, 0, comm_, &requests_.emplace_back()));
  }
  void start_receive(int64_t bytes) override {
    CHECK_MPI(MPI_Irecv(in_, static_cast<int>(bytes), MPI_BYTE, peer_, 0, comm_, &requests_.emplace_back()));
  }
  void wait_all() override {
    CHECK_MPI(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE));
    requests_.clear();
  }
  void describe(Row& row) const override { row.set("backend", "MPI_Send").set("transport", "as MPI chose"); }

 private:
  MPI_Comm comm_;
  int peer_;
  void *out_, *in_;
  std::vector<MPI_Request> requests_;
};

class OurWire : public Wire {
 public:
  OurWire(Communicator& world, int peer, torch::Tensor out, torch::Tensor in) : world_(world), peer_(peer), out_(out), in_(in) {}
  const char* name() const override { return "ours"; }
  bool carries(int64_t bytes) const override { return bytes > 0; }  // a tensor without elements is no message
  void send(int64_t bytes) override { world_.send(out_.narrow(0, 0, bytes), peer_); }
  void receive(int64_t bytes) override { world_.recv(in_.narrow(0, 0, bytes), peer_); }
  void start_send(int64_t bytes) override { works_.push_back(world_.send_async(out_.narrow(0, 0, bytes), peer_)); }
  void start_receive(int64_t bytes) override { works_.push_back(world_.recv_async(in_.narrow(0, 0, bytes), peer_)); }
  void wait_all() override {
    for (Work& work : works_) work.wait();
    works_.clear();
  }
  void describe(Row& row) const override { fill(row, world_); }

 private:
  Communicator& world_;
  int peer_;
  torch::Tensor out_, in_;
  std::vector<Work> works_;
};

enum Kind { latency, bandwidth, bidirectional, kinds };
constexpr const char* kind_names[] = {"half_round_trip", "bandwidth", "bidirectional"};

// One sample: seconds per message (latency) or per window, seen from the side that starts.
double sample(Wire& wire, Kind kind, int64_t bytes, bool starts, int repeats) {
  const WallTimer timer;
  for (int i = 0; i < repeats; ++i) {
    if (kind == latency) {
      starts ? (wire.send(bytes), wire.receive(bytes)) : (wire.receive(bytes), wire.send(bytes));
      continue;
    }
    const bool both = kind == bidirectional;
    if (!starts || both) for (int w = 0; w < window; ++w) wire.start_receive(bytes);  // receives first: nothing arrives unexpected
    if (starts || both) for (int w = 0; w < window; ++w) wire.start_send(bytes);
    wire.wait_all();
    starts ? wire.receive(1) : wire.send(1);
  }
  return timer.seconds() / repeats / (kind == latency ? 2 : 1);
}

void verify(Wire& wire, torch::Tensor out, torch::Tensor in, bool starts, int rank, int peer) {
  const auto pattern = [&](int r) { return (torch::arange(out.numel()) * 31 + r * 7).remainder(251).to(torch::kUInt8); };
  out.copy_(pattern(rank));
  in.zero_();
  starts ? (wire.send(out.numel()), wire.receive(out.numel())) : (wire.receive(out.numel()), wire.send(out.numel()));
  if (!torch::equal(in, pattern(peer))) throw verify_error(wire.name(), fmt::format("what rank {} sent did not arrive as sent", peer));
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch. Ranks 0..p/2-1 are paired with the upper half; an odd last rank looks on.
    Options options("02_message_passing/bench_latency", "latency, bandwidth and message rate between pairs of ranks");
    int64_t largest = 4 << 20;
    options.add("--largest", largest, "largest message in bytes").between(int64_t{1}, int64_t{1} << 30);
    process.start(options);
    if (process.world_size() < 2) throw usage_error("bench_latency", "one rank has nobody to talk to", "mpirun -np 2");
    Communicator& world = process.world();
    const RawMpi mpi(process);
    const int pairs = mpi.size / 2;
    const bool active = mpi.rank < 2 * pairs, starts = mpi.rank < pairs;
    const int peer = starts ? mpi.rank + pairs : mpi.rank - pairs;
    if (options.quick) largest = std::min<int64_t>(largest, 64 << 10);

    // 2. Data, wires, and the check that they carry what was given to them.
    const auto out = torch::zeros({largest}, torch::kUInt8), in = torch::zeros({largest}, torch::kUInt8);
    std::vector<std::unique_ptr<Wire>> wires;
    wires.push_back(std::make_unique<MpiWire>(mpi.world, peer, out, in));
    wires.push_back(std::make_unique<OurWire>(world, peer, out, in));
    for (auto& wire : wires)
      if (active) verify(*wire, out, in, starts, mpi.rank, peer);
    if (options.verify_only) return;

    // 3. Time: every wire in turn within a sample, so that a busy moment of the machine hits all.
    std::vector<std::string> header = {"bytes"};
    for (const auto& wire : wires)
      for (const char* column : {"us", "MB/s", "MB/s both", "k msg/s"}) header.push_back(fmt::format("{} {}", wire->name(), column));
    Table table(header);
    const int samples = static_cast<int>(options.steps_or(21, 3)), warmup = options.quick ? 1 : 3;
    for (int64_t bytes = 0; bytes <= largest; bytes = bytes ? bytes * 2 : 1) {
      const int repeats = options.quick ? 2 : bytes <= 8192 ? 50 : bytes <= 262144 ? 10 : 2;
      std::vector<std::vector<double>> seconds(wires.size() * kinds);
      for (int s = 0; s < warmup + samples; ++s) {
        for (size_t w = 0; w < wires.size(); ++w) {
          if (!wires[w]->carries(bytes)) continue;
          for (int kind = 0; kind < kinds; ++kind) {
            CHECK_MPI(MPI_Barrier(mpi.world));  // pairs start together
            double mine = active ? sample(*wires[w], Kind(kind), bytes, starts, kind == latency ? repeats : std::max(1, repeats / 10)) : 0, slowest = 0;
            CHECK_MPI(MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, mpi.world));
            if (s >= warmup) seconds[w * kinds + kind].push_back(slowest);
          }
        }
      }

      // 4. Report: one line of the table and a row per wire and kind.
      std::vector<std::string> line = {std::to_string(bytes)};
      for (size_t w = 0; w < wires.size(); ++w) {
        if (!wires[w]->carries(bytes)) {
          line.insert(line.end(), 4, "-");
          continue;
        }
        const double sent = static_cast<double>(bytes) * window * pairs;
        for (int kind = 0; kind < kinds; ++kind) {
          const auto& all = seconds[w * kinds + kind];
          const Timing timing{median(all), quantile(all, 0.95), all};
          const double GBs = (kind == bidirectional ? 2 : 1) * sent / timing.median * 1e-9;
          line.push_back(kind == latency ? fmt::format("{:.2f}", timing.median * 1e6) : fmt::format("{:.1f}", GBs * 1e3));
          Row row;
          row.set("variant", wires[w]->name()).set("workload", kind_names[kind]).set("kind", "measured").set("dtype", "uint8").set("bytes", bytes);
          wires[w]->describe(row);
          fill(row, timing);
          if (kind != latency) row.set("algbw_GBs", GBs).set("rate", window * pairs / timing.median).set("rate_unit", "messages/s");
          write_row(process, row);
        }
        line.push_back(fmt::format("{:.1f}", window * pairs / median(seconds[w * kinds + bandwidth]) * 1e-3));
      }
      table.add(line);
    }
    if (process.is_root()) fmt::print("{} pair(s), medians of {} samples, ours over {}\n{}", pairs, samples, world.transport(), table.text(2));
  });
}
