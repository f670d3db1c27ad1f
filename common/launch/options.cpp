#include "launch/options.hpp"

#include <fmt/format.h>

namespace manyranks {

Options::Options(std::string name, const std::string& idea) : name_(std::move(name)), app_(idea, name_) {
  app_.option_defaults()->always_capture_default();
  app_.add_option("--device", device, "where tensors live")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app_.add_option("--backend", backend, "how ranks talk")->check(CLI::IsMember({"auto", "mpi", "gloo", "nccl"}));
  app_.add_option("--steps", steps, "steps; 0: the program's own default")->check(CLI::NonNegativeNumber);
  app_.add_option("--batch", batch, "samples per rank; 0: the program's own default")->check(CLI::NonNegativeNumber);
  app_.add_option("--seed", seed, "seed of data and weights");
  app_.add_option("--threads", threads, "compute threads per rank")->check(CLI::PositiveNumber);
  app_.add_option("--data", data, "folder or file; empty: the embedded data set");
  app_.add_option("--csv", csv, "append measurements to this file");
  app_.add_option("--samples", samples, "write raw step times to this file");
  app_.add_option("--trace", trace, "write a Chrome/Perfetto trace to this file");
  app_.add_option("--timeout-s", timeout_s, "seconds a rank may wait for its peers")->check(CLI::PositiveNumber);
  app_.add_option("--memory-cap", memory_cap, "bytes of tensors per rank; 0: no cap (suffixes: kb, mb, gb)")
      ->transform(CLI::AsSizeValue(false));
  app_.add_flag("--verify-only", verify_only, "check results, time nothing");
  app_.add_flag("--quick", quick, "a run of seconds, for tests");
  app_.add_flag("--json", json, "print the result as JSON");
}

void Options::parse(int argc, char** argv) { app_.parse(argc, argv); }

std::string Options::summary() const {
  std::string text = name_ + ":";
  for (const CLI::Option* option : app_.get_options()) {
    if (option->count() == 0 || option->get_name() == "--help") continue;
    const bool is_flag = option->get_items_expected_max() == 0;
    text += " " + option->get_name() + (is_flag ? "" : " " + CLI::detail::join(option->results(), ","));
  }
  if (app_.get_option("--seed")->count() == 0) text += fmt::format(" --seed {}", seed);
  return text;
}

}  // namespace manyranks
