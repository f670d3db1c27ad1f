// The flags that every program knows, on top of CLI11. A program adds its own:
//
//   options.add("--model", kind, "what to train").one_of({"mlp", "resnet18"});
//   options.add("--rounds", rounds, "samples per size").positive();
//
// CLI11's header stays in options.cpp: it makes every file that includes it compile 10 s longer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace manyranks {

// What a flag's value must be; anything else is exit 64.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}
  Flag& positive();
  Flag& not_negative();
  Flag& between(int64_t least, int64_t most);
  Flag& one_of(const std::vector<std::string>& choices);
  Flag& in_bytes();                       // 4kb, 16mb, 1gb
  Flag& list();                           // a,b,c
  Flag& required();
  Flag& needs(const std::string& other);  // which was added before

 private:
  CLI::Option* option_;
};

class Options {
 public:
  // `name` is the program ("03_data_parallel/01_naive"), `idea` one line about it for --help.
  Options(std::string name, const std::string& idea);
  ~Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  std::string device = "auto";   // auto | cpu | cuda
  std::string backend = "auto";  // auto | mpi | gloo | nccl
  int64_t steps = 0;             // 0: the program's own default
  int64_t batch = 0;             // per rank; 0: the program's own default
  uint64_t seed = 1;
  int threads = 1;               // per rank; fixed, so that scaling over ranks compares like with like
  std::string data;              // folder or file; empty: the embedded default
  std::string csv;               // append measurements here
  std::string samples;           // raw step times
  std::string trace;             // Chrome/Perfetto trace
  double timeout_s = 60;         // how long a rank may wait for its peers
  uint64_t memory_cap = 0;       // bytes per rank, 0: none
  bool verify_only = false;
  bool quick = false;            // seconds, for tests
  bool json = false;

  // `variable` keeps its value unless the flag is given, and must stay where it is until then. A bool takes no value on the command
  // line. Which types there are: the end of options.cpp.
  template <class T>
  Flag add(const std::string& flag, T& variable, const std::string& what);
  bool given(const std::string& flag) const;  // on the command line

  const std::string& name() const { return name_; }
  std::string help() const;

  // Throws CLI::ParseError for --help and for bad flags; Process::start turns it into the right end.
  void parse(int argc, char** argv);

  // steps and batch with the program's defaults filled in.
  int64_t steps_or(int64_t usual, int64_t quick_steps) const { return steps ? steps : quick ? quick_steps : usual; }
  int64_t batch_or(int64_t usual) const { return batch ? batch : usual; }

  // The resolved setting in one line, for rank 0: every flag that differs from its default, and the seed.
  std::string summary() const;

 private:
  std::string name_;
  std::unique_ptr<CLI::App> app_;
};

}  // namespace manyranks
