// Every collective, 8 B to 256 MiB, ours beside MPI's and Gloo's, in one interleaved run; results checked bit by bit.
//
// Run it      mpirun -np 2 build/02_message_passing/bench_collectives --collective all_reduce
//             mpirun -np 8 build/02_message_passing/bench_collectives --min-busbw 300     (a gate for cluster acceptance)
// The table has the columns of nccl-tests, in its order. algbw = size / time; busbw = algbw x the factor that makes it comparable with
// the speed of a link, whatever the collective and the number of ranks (2(n-1)/n for all-reduce).
// time is the median over samples of the slowest rank's time; "+-" is half the interquartile range; #wrong counts elements.
#include "contenders.hpp"
#include "launch/process.hpp"      // Process
#include "measure/provenance.hpp"  // write_row, fill
#include "measure/statistics.hpp"  // median, spread
#include "measure/table.hpp"       // Table

using namespace manyranks;

namespace {

struct Result {
  double median = 0, spread = 0, p95 = 0;
  int64_t wrong = 0;
  bool ran = false;
};

// Small integers: float sums of them are exact in any order, so that every algorithm must give the same bits.
torch::Tensor pattern(int64_t count, int rank) { return torch::remainder(torch::arange(count, torch::kInt32), 251).add_(rank).to(torch::kFloat32); }

// What `out` must hold on `rank`.
torch::Tensor expected(Collective collective, int64_t count, int rank, int ranks) {
  const int64_t part = count / ranks;
  torch::Tensor sum = torch::zeros({count});
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter:
      for (int r = 0; r < ranks; ++r) sum += pattern(count, r);
      return collective == Collective::reduce_scatter ? sum.narrow(0, rank * part, part) : sum;
    case Collective::all_gather:
    case Collective::gather: {
      std::vector<torch::Tensor> parts;
      for (int r = 0; r < ranks; ++r) parts.push_back(pattern(part, r));
      return torch::cat(parts);
    }
    case Collective::broadcast: return pattern(count, 0);
    case Collective::scatter: return pattern(count, 0).narrow(0, rank * part, part);
    case Collective::all_to_all: {
      std::vector<torch::Tensor> parts;
      for (int r = 0; r < ranks; ++r) parts.push_back(pattern(count, r).narrow(0, rank * part, part));
      return torch::cat(parts);
    }
    case Collective::send_recv: return pattern(count, (rank + ranks - 1) % ranks);
  }
  return sum;
}

bool rooted_out(Collective c) { return c == Collective::reduce || c == Collective::gather; }

// Two arrays of the largest size; each size uses their beginnings.
struct Buffers {
  torch::Tensor a, b;
};

// One contender with its tensors for one size.
class Entry {
 public:
  Entry(Contender& contender, const Buffers& buffers, Collective collective, bool in_place, int64_t count, int rank, int ranks)
      : contender_(contender), collective_(collective), rank_(rank), count_(count), ranks_(ranks) {
    const Shapes shape = shapes(collective, count, ranks);
    in_ = buffers.a.narrow(0, 0, shape.in);
    out_ = buffers.b.narrow(0, 0, shape.out);
    if (!in_place) return;
    // The smaller array is a part of the larger one, where nccl-tests puts it.
    if (shape.in < shape.out) in_ = out_.narrow(0, rank * shape.in, shape.in);
    else if (shape.out < shape.in) out_ = in_.narrow(0, rank * shape.out, shape.out);
    else in_ = out_;
  }

  void reset() {
    in_.copy_(pattern(in_.numel(), rank_));
    if (collective_ == Collective::broadcast && rank_ == 0) out_.copy_(pattern(out_.numel(), 0));
  }
  void run() { seconds(1); }
  double seconds(int64_t iterations) { return contender_.seconds(collective_, out_, in_, iterations); }
  int64_t wrong() const {
    if (const auto counted = contender_.wrong(collective_, count_)) return *counted;
    if (rooted_out(collective_) && rank_ != 0) return 0;
    return (out_ != expected(collective_, count_, rank_, ranks_)).sum().item<int64_t>();
  }

 private:
  Contender& contender_;
  Collective collective_;
  int rank_;
  int64_t count_;
  int ranks_;
  torch::Tensor in_, out_;
};

struct Plan {
  int64_t samples;
  double sample_s;  // each sample repeats the call until about this long
  int64_t iterations_cap;
};

// Times all entries in turn, the order alternating. While one is timed the others do nothing.
std::vector<Result> race(Communicator& world, std::vector<std::unique_ptr<Entry>>& entries, const Plan& plan) {
  std::vector<Result> results(entries.size());
  std::vector<int64_t> iterations(entries.size());
  std::vector<std::vector<double>> samples(entries.size());
  for (size_t e = 0; e < entries.size(); ++e) {
    if (!entries[e]) continue;
    results[e].ran = true;
    entries[e]->reset();
    world.barrier();
    entries[e]->run();
    auto wrong = torch::tensor({entries[e]->wrong()});
    world.all_reduce(wrong);
    results[e].wrong = wrong.item<int64_t>();
    world.barrier();
    // Rank 0 decides for all: adaptive counts that differ between ranks would deadlock.
    auto n = torch::tensor({std::clamp<int64_t>(static_cast<int64_t>(plan.sample_s * 3 / entries[e]->seconds(3)), 1, plan.iterations_cap)});
    world.broadcast(n, 0);
    iterations[e] = n.item<int64_t>();
  }
  for (int64_t s = 0; s < plan.samples; ++s) {
    for (size_t k = 0; k < entries.size(); ++k) {
      const size_t e = s % 2 ? entries.size() - 1 - k : k;
      if (!entries[e]) continue;
      world.barrier();
      entries[e]->run();  // the first call after another contender finds cold caches and sleeping peers
      samples[e].push_back(entries[e]->seconds(iterations[e]) / static_cast<double>(iterations[e]));
    }
  }
  for (size_t e = 0; e < entries.size(); ++e) {
    if (!entries[e]) continue;
    auto slowest = torch::tensor(samples[e], torch::kFloat64);
    world.all_reduce(slowest, ReduceOp::max);
    const std::vector<double> times(slowest.data_ptr<double>(), slowest.data_ptr<double>() + slowest.numel());
    results[e].median = median(times);
    results[e].spread = spread(times) / 2;
    results[e].p95 = quantile(times, 0.95);
  }
  return results;
}

// All-reduce in place, at one size: ours beside the fastest library, and beside what copying allows.
class Standing {
 public:
  void add(const std::vector<std::unique_ptr<Contender>>& all, int64_t bytes, const std::vector<Result>& in_place, const std::vector<Result>& out_of_place) {
    double ours[2] = {0, 0}, library = 0, bound = 0;
    std::string fastest;
    for (size_t c = 0; c < all.size(); ++c) {
      const std::string name = all[c]->name();
      if (name == copy_bound_name) bound = out_of_place[c].median;
      if (!in_place[c].ran) continue;
      if (name.rfind("ours", 0) == 0) ours[all[c]->registered()] = in_place[c].median;
      const bool is_library = name.rfind("MPI", 0) == 0 || name.find("Gloo") != std::string::npos;
      if (is_library && (fastest.empty() || in_place[c].median < library)) library = in_place[c].median, fastest = name;
    }
    if (ours[0] == 0 || ours[1] == 0 || fastest.empty() || bound == 0) return;  // --only left somebody out
    const auto share = [](double part, double whole) { return fmt::format("{:.2f}", part / whole); };
    table_.add({format_bytes(bytes), fmt::format("{:.2f}", ours[0] * 1e6), fmt::format("{:.2f}", ours[1] * 1e6), fmt::format("{:.2f}", library * 1e6), fastest,
                share(library, ours[0]), share(library, ours[1]), fmt::format("{:.2f}", bound * 1e6), share(bound, ours[0]), share(bound, ours[1])});
    empty_ = false;
  }
  std::string text() const { return empty_ ? "" : "all_reduce in place, and the bound: one copy of the array per rank, all ranks at once\n" + table_.text(0); }

 private:
  Table table_{{"size", "ours us", "registered us", "fastest library us", "which", "library/ours", "library/registered", "bound us", "bound/ours", "bound/registered"}};
  bool empty_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  allow_forced_algorithms();
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options.
    Options options("02_message_passing/bench_collectives", "every collective, ours beside the libraries', checked and timed");
    std::string collective_name = "all";
    uint64_t smallest = 8, largest = 256 << 20;
    int64_t factor = 4, samples = 11;
    double min_busbw = 0;
    std::vector<std::string> only;
    std::vector<std::string> names{"all"};
    for (const auto& [name, value] : collectives()) names.push_back(name);
    options.add("--collective", collective_name, "which one").one_of(names);
    options.add("--min-bytes", smallest, "smallest size").in_bytes();
    options.add("--max-bytes", largest, "largest size").in_bytes();
    options.add("--factor", factor, "from one size to the next").between(2, 1024);
    options.add("--samples-per-point", samples, "timed samples per size and contender").positive();
    options.add("--only", only, "contenders whose name starts with one of these");
    options.add("--min-busbw", min_busbw, "fail (exit 1) if our best bus bandwidth stays below this, in GB/s");

    // 2. Launch.
    process.start(options);
    Communicator& world = process.world();
    if (options.quick) {
      largest = std::min<uint64_t>(largest, 1 << 20);
      factor = std::max<int64_t>(factor, 32);
      samples = std::min<int64_t>(samples, 3);
    }
    const Plan plan{samples, options.quick ? 2e-4 : 2e-3, 2000};

    // 3. Contenders.
    std::vector<std::unique_ptr<Contender>> all;
    const auto wanted = [&](const std::string& name) { return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& start) { return name.starts_with(start); }); };
    const auto join = [&](std::vector<std::unique_ptr<Contender>> list) {
      for (auto& contender : list)
        if (wanted(contender->name())) all.push_back(std::move(contender));
    };
    join(our_contenders(world));
    if (process.has_mpi() && process.device().is_cpu()) join(mpi_contenders());
    if (process.has_mpi() && process.device().is_cpu()) join(algorithm_contenders(process));
    if (process.device().is_cpu()) join(gloo_contenders(process));
    if (process.device().is_cpu() && wanted(pytorch_contender_name)) join(pytorch_contenders(process));  // starts Python on every rank: seconds
    if (process.device().is_cpu() && !all.empty()) join(copy_bound());
    if (all.empty()) throw usage_error("--only", "no contender has such a name");

    const int64_t most = std::max<int64_t>(static_cast<int64_t>(largest) / 4, world.size());
    const Buffers ordinary{torch::zeros({most}), torch::zeros({most})};
    const Buffers registered{world.allocate({most}, torch::kFloat32), world.allocate({most}, torch::kFloat32)};

    // 4. Verify and time.
    int64_t total_wrong = 0;
    double best_busbw = 0;
    Standing standing;
    for (const auto& [name, collective] : collectives()) {
      if (collective_name != "all" && collective_name != name) continue;
      Table table({"size (B)", "count", "type", "redop", "root", "who", "time (us)", "+-", "algbw (GB/s)", "busbw (GB/s)", "#wrong", "in place (us)", "+-", "algbw", "busbw", "#wrong"});
      for (uint64_t bytes = smallest; bytes <= largest; bytes *= factor) {
        // Whole parts of whole floats, as nccl-tests rounds.
        const int64_t count = std::max<int64_t>(1, static_cast<int64_t>(bytes) / 4 / world.size()) * world.size();
        std::vector<Result> results[2];
        for (const bool in_place : {false, true}) {
          std::vector<std::unique_ptr<Entry>> entries;
          for (auto& contender : all)
            entries.push_back(contender->can(collective, in_place) ? std::make_unique<Entry>(*contender, contender->registered() ? registered : ordinary, collective, in_place, count, world.rank(), world.size()) : nullptr);
          results[in_place] = race(world, entries, plan);
        }
        if (collective == Collective::all_reduce) standing.add(all, count * 4, results[true], results[false]);
        const double size = static_cast<double>(count) * 4;
        const bool reduces = collective == Collective::all_reduce || collective == Collective::reduce || collective == Collective::reduce_scatter;
        const bool rooted = collective == Collective::broadcast || collective == Collective::reduce || collective == Collective::gather || collective == Collective::scatter;
        for (size_t c = 0; c < all.size(); ++c) {
          if (!results[false][c].ran && !results[true][c].ran) continue;
          std::vector<std::string> cells{std::to_string(count * 4), std::to_string(count), "float", reduces ? "sum" : "none", rooted ? "0" : "-1", all[c]->name()};
          for (const bool in_place : {false, true}) {
            const Result& r = results[in_place][c];
            if (!r.ran) {
              cells.insert(cells.end(), {"", "", "", "", ""});
              continue;
            }
            const double algbw = size / r.median / 1e9, busbw = algbw * bus_factor(collective, world.size());
            cells.insert(cells.end(), {fmt::format("{:.2f}", r.median * 1e6), fmt::format("{:.2f}", r.spread * 1e6), fmt::format("{:.3f}", algbw), fmt::format("{:.3f}", busbw), std::to_string(r.wrong)});
            total_wrong += r.wrong;
            if (all[c]->name().rfind("ours", 0) == 0) best_busbw = std::max(best_busbw, busbw);
            if (r.wrong == 0) {
              Row row;
              row.set("variant", all[c]->name() + (in_place ? ", in place" : "")).set("workload", name).set("kind", "measured").set("dtype", "float32").set("bytes", count * 4);
              row.set("iterations", samples).set("median_s", r.median).set("p95_s", r.p95).set("algbw_GBs", algbw).set("busbw_GBs", busbw).set("backend", world.backend()).set("transport", all[c]->transport());
              write_row(process, row);
            }
          }
          table.add(cells);
        }
      }
      if (process.is_root()) fmt::print("\n{} on {} rank(s)\n{}", name, world.size(), table.text(0));
    }

    // 5. How far from what the memory allows, and from the libraries.
    if (process.is_root()) fmt::print("\n{}", standing.text());

    // 6. The gates: nothing wrong, and fast enough if asked.
    if (total_wrong) throw verify_error("bench_collectives", fmt::format("{} elements are wrong (see #wrong)", total_wrong));
    if (min_busbw > 0 && best_busbw < min_busbw) throw verify_error("--min-busbw", fmt::format("our best bus bandwidth is {:.2f} GB/s, asked for {:g}", best_busbw, min_busbw));
  });
}
