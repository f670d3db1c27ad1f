// One rank's life: read who I am, start, run, end in order. The only place that turns an exception into an exit code.
//
//   int main(int argc, char** argv) {
//     manyranks::Process process(argc, argv);
//     return process.run([&] {
//       Options options("03_data_parallel/01_naive", "...");
//       process.start(options);                    // parses, starts MPI if there is one, picks device and threads
//       Communicator& world = process.world();     // picks the backend, and says which
//       ...
//     });
//   }
#pragma once

#include "launch/torch.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/errors.hpp"    // Error, Skip, Exit
#include "launch/identity.hpp"  // Identity
#include "launch/options.hpp"   // Options
#include "launch/rank_map.hpp"  // Place
#include "launch/rendezvous.hpp"  // Rendezvous

namespace manyranks {

class Communicator;

class Process {
 public:
  Process(int argc, char** argv);  // reads nothing but the environment; starts nothing
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Runs `body`; any exception becomes one line on standard error and the end of the whole job.
  int run(const std::function<void()>& body);

  // Parses the flags and starts what they ask for. `options` must outlive the process's use of it.
  void start(Options& options);

  int rank() const { return identity_.rank; }
  int world_size() const { return identity_.world_size; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  int node() const { return node_; }
  int nodes() const { return static_cast<int>(hosts_.size()); }
  bool is_root() const { return rank() == 0; }
  bool oversubscribed() const;  // more compute threads on this host than cores
  const std::string& host() const { return host_; }
  const std::vector<std::string>& hosts() const { return hosts_; }    // by node
  const std::vector<Place>& places() const { return places_; }        // by rank
  const Identity& identity() const { return identity_; }
  const Options& options() const { return *options_; }
  torch::Device device() const { return device_; }
  bool has_mpi() const { return mpi_started_; }
  const std::string& cpu_note() const { return cpu_note_; }

  Communicator& world();  // made on first use
  Rendezvous& rendezvous() { return *rendezvous_; }

  void set_step(long step) { step_ = step; }  // shown in error lines

  // Ends the whole job at once, from any thread: prints the line, tells the peers, does not return.
  [[noreturn]] void end_job(const Error& error);

 private:
  void start_mpi();
  void learn_places();
  void pick_device();
  void end_in_order();
  int end_skipped(const Skip& skip);
  [[noreturn]] void end_job(int code, const std::string& line);
  void let_root_speak_first() const;

  int argc_;
  char** argv_;
  Options* options_ = nullptr;
  Identity identity_;
  std::optional<Error> identity_error_;
  std::string host_;
  std::vector<std::string> hosts_;
  std::vector<Place> places_;
  int local_rank_ = 0, local_size_ = 1, node_ = 0;
  torch::Device device_{torch::kCPU};
  bool mpi_started_ = false;
  std::string cpu_note_;
  std::atomic<long> step_{-1};
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Communicator> world_;
  std::atomic<Communicator*> connected_{
      nullptr};  // world_ once it stands: the watch over the peers begins before that, in a thread of its own
};

}  // namespace manyranks
