#include "launch/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace manyranks {

Flag& Flag::positive() { return option_->check(CLI::PositiveNumber), *this; }
Flag& Flag::not_negative() { return option_->check(CLI::NonNegativeNumber), *this; }
Flag& Flag::between(int64_t least, int64_t most) { return option_->check(CLI::Range(least, most)), *this; }
Flag& Flag::one_of(const std::vector<std::string>& choices) { return option_->check(CLI::IsMember(choices)), *this; }
Flag& Flag::in_bytes() { return option_->transform(CLI::AsSizeValue(/*kb_is_1000=*/false)), *this; }
Flag& Flag::list() { return option_->delimiter(','), *this; }
Flag& Flag::required() { return option_->required(), *this; }
Flag& Flag::needs(const std::string& other) { return option_->needs(other), *this; }

Options::Options(std::string name, const std::string& idea) : name_(std::move(name)), app_(std::make_unique<CLI::App>(idea, name_)) {
  app_->option_defaults()->always_capture_default();
  add("--device", device, "where tensors live").one_of({"auto", "cpu", "cuda"});
  add("--backend", backend, "how ranks talk").one_of({"auto", "mpi", "gloo", "nccl"});
  add("--steps", steps, "steps; 0: the program's own default").not_negative();
  add("--batch", batch, "samples per rank; 0: the program's own default").not_negative();
  add("--seed", seed, "seed of data and weights");
  add("--threads", threads, "compute threads per rank").positive();
  add("--data", data, "folder or file; empty: the embedded data set");
  add("--csv", csv, "append measurements to this file");
  add("--samples", samples, "write raw step times to this file");
  add("--trace", trace, "write a Chrome/Perfetto trace to this file");
  add("--timeout-s", timeout_s, "seconds a rank may wait for its peers").positive();
  add("--memory-cap", memory_cap, "bytes of tensors per rank; 0: no cap (suffixes: kb, mb, gb)").in_bytes();
  add("--verify-only", verify_only, "check results, time nothing");
  add("--quick", quick, "a run of seconds, for tests");
  add("--json", json, "print the result as JSON");
}

Options::~Options() = default;

template <class T>
Flag Options::add(const std::string& flag, T& variable, const std::string& what) {
  if constexpr (std::is_same_v<T, bool>)
    return Flag(app_->add_flag(flag, variable, what));
  else
    return Flag(app_->add_option(flag, variable, what));
}

bool Options::given(const std::string& flag) const { return app_->get_option(flag)->count() > 0; }

std::string Options::help() const { return app_->help(); }

void Options::parse(int argc, char** argv) { app_->parse(argc, argv); }

std::string Options::summary() const {
  std::string text = name_ + ":";
  for (const CLI::Option* option : std::as_const(*app_).get_options()) {
    if (option->count() == 0 || option->get_name() == "--help") continue;
    const bool is_flag = option->get_items_expected_max() == 0;
    text += " " + option->get_name() + (is_flag ? "" : " " + CLI::detail::join(option->results(), ","));
  }
  if (!given("--seed")) text += fmt::format(" --seed {}", seed);
  return text;
}

template Flag Options::add(const std::string&, bool&, const std::string&);
template Flag Options::add(const std::string&, int&, const std::string&);
template Flag Options::add(const std::string&, int64_t&, const std::string&);
template Flag Options::add(const std::string&, uint64_t&, const std::string&);
template Flag Options::add(const std::string&, float&, const std::string&);
template Flag Options::add(const std::string&, double&, const std::string&);
template Flag Options::add(const std::string&, std::string&, const std::string&);
template Flag Options::add(const std::string&, std::vector<int>&, const std::string&);
template Flag Options::add(const std::string&, std::vector<int64_t>&, const std::string&);
template Flag Options::add(const std::string&, std::vector<size_t>&, const std::string&);
template Flag Options::add(const std::string&, std::vector<double>&, const std::string&);
template Flag Options::add(const std::string&, std::vector<std::string>&, const std::string&);

}  // namespace manyranks
