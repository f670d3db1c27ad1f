// The judge: loads a learner's compiled file and runs the checks of its exercise, on as many ranks as it is started with.
//
//   mpirun -np 2 build/07_challenge/judge --job 02_ring=/tmp/02_ring.so
//
// The grader (scripts/grade.sh) starts it; several --job run one after the other. The report goes to --report, each line behind --word.
#include "launch/process.hpp"  // Process, Options

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <map>

#include "counted_ranks.hpp"  // CountedRanks
#include "memory_meter.hpp"   // Metered
#include "report.hpp"         // Report

namespace manyranks {

// One judge function per folder of exercises/, listed by CMake.
#define EXERCISE(name) void judge_##name(Bench& bench);
#include "exercises.inc"
#undef EXERCISE

namespace {

const std::map<std::string, void (*)(Bench&)> exercises = {
#define EXERCISE(name) {#name, judge_##name},
#include "exercises.inc"
#undef EXERCISE
};

class RankBench final : public Bench {
 public:
  RankBench(Process& process, Report& report, void* library)
      : process_(process), world_(process.world()), ranks_(world_, process.device()), report_(report), library_(library) {}

  Ranks& ranks() override { return ranks_; }
  uint64_t seed() const override { return process_.options().seed; }
  Counts counts() const override { return ranks_.counts(); }
  int64_t peak_bytes() const override { return peak_; }

  void learner(const char* check, const std::function<void()>& code) override {
    check_ = check;
    if (process_.is_root()) report_.trying(check);
    world_.barrier();
    ranks_.reset();
    try {
      const Metered metered;
      code();
    } catch (const Error& error) {
      if (error.code != Exit::usage) throw;  // the Communicator's: ranks disagree, a peer is lost
      give_up(fmt::format("{}: {}", error.operation, error.cause));  // a call that it refuses: sizes that do not fit, for example
    } catch (const std::exception& error) {
      give_up(error.what());
    } catch (const abi::__forced_unwind&) {
      throw;  // pthread_exit(): must not be held up
    } catch (...) {
      give_up("something was thrown that is no std::exception");
    }
    peak_ = Metered::peak();
  }

  bool require(const char* check, bool ok, const std::string& seen, const char* hint) override {
    const float mine = ok ? 0 : 1;
    const auto all = collect({&mine, 1});
    const auto first = std::find(all.begin(), all.end(), 1.0f);
    // Who failed first speaks: it alone knows what it saw.
    if (first == all.end() ? process_.is_root() : first - all.begin() == process_.rank())
      report_.check(check, first == all.end(), ok ? "" : world_.size() > 1 ? fmt::format("rank {}: {}", process_.rank(), seen) : seen, ok ? "" : hint);
    world_.barrier();
    return first == all.end();
  }

  int64_t all_reduce_bytes(size_t elements) override {
    const int64_t before = world_.traffic().bytes_sent;
    world_.all_reduce(torch::zeros({static_cast<int64_t>(elements)}, torch::TensorOptions(process_.device())));
    return world_.traffic().bytes_sent - before;
  }

  std::vector<float> collect(std::span<const float> mine) override {
    const auto in = torch::from_blob(const_cast<float*>(mine.data()), {static_cast<int64_t>(mine.size())}, torch::kFloat32).to(process_.device());
    const auto out = torch::empty({static_cast<int64_t>(mine.size()) * world_.size()}, in.options());
    world_.all_gather(out, in);
    const auto here = out.cpu();
    return {here.data_ptr<float>(), here.data_ptr<float>() + here.numel()};
  }

 protected:
  void* symbol(const char* name) override {
    void* found = dlsym(library_, name);
    if (!found) give_up(fmt::format("{}() is not in the file", name));
    return found;
  }

 private:
  // The others wait in a call that this rank will not make: write down why, and end the job.
  [[noreturn]] void give_up(const std::string& why) {
    report_.check(check_, false, fmt::format("rank {}: stopped with: {}", process_.rank(), why), "stopped");
    throw verify_error(check_, why);
  }

  Process& process_;
  Communicator& world_;
  CountedRanks ranks_;
  Report& report_;
  void* library_;
  const char* check_ = "";
  int64_t peak_ = 0;
};

}  // namespace

std::string text(const char* format, ...) {
  char buffer[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

void Bench::require_one_all_reduce(size_t elements) {
  const Counts made = counts();
  const bool enough = made.collectives == 1 || (made.collectives == 0 && size() == 1);  // alone, there is nothing to exchange
  require("calls", enough && made.messages == 0, text("%ld collectives and %ld messages, where one collective is enough", static_cast<long>(made.collectives), static_cast<long>(made.messages)));
  const int64_t most = all_reduce_bytes(elements);
  require("bytes", made.bytes_sent <= most, text("%ld bytes sent, where %ld are enough", static_cast<long>(made.bytes_sent), static_cast<long>(most)));
}

std::string difference(const char* what, std::span<const float> got, std::span<const float> want, float tolerance) {
  const int64_t at = first_difference(got, want, tolerance);
  return at < 0 || got.empty() || got.size() != want.size() ? std::string(what) + " is right" : text("%s[%ld] is %.9g, it should be %.9g", what, static_cast<long>(at), got[at], want[at]);
}

}  // namespace manyranks

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    // 1. Options and launch.
    Options options("07_challenge/judge", "runs the checks of an exercise on a learner's compiled file");
    std::vector<std::string> jobs;
    std::string file, word = "report";
    options.add("--job", jobs, "EXERCISE=FILE.so; may be repeated; none: do the ranks start at all?");
    options.add("--report", file, "append the report here (default: standard output)");
    options.add("--word", word, "stands in front of each line of the report");
    process.start(options);
    process.world();
    Report report(file, word);

    // 2. Each exercise in turn.
    for (const auto& job : jobs) {
      const auto name = job.substr(0, job.find('=')), library = job.substr(std::min(job.size(), name.size() + 1));
      const auto found = exercises.find(name);
      if (found == exercises.end()) throw usage_error("--job", "no exercise is called " + name);
      if (process.is_root()) report.exercise(name, process.world_size(), process.device().str());
      void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!loaded) throw data_error("dlopen", dlerror());
      RankBench bench(process, report, loaded);
      found->second(bench);
      process.world().barrier();
      if (process.is_root()) report.end(name);
    }
  });
}
