#include "launch/process.hpp"

#include <mpi.h>
#include <unistd.h>

#include <CLI/CLI.hpp>  // ParseError
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "comm/communicator.hpp"  // Communicator, connect
#include "launch/cpu_features.hpp"
#include "launch/mpi_check.hpp"
#include "measure/allocator.hpp"  // CountingAllocator

#ifdef __SANITIZE_ADDRESS__
// Open MPI unloads its plugins at the end. LeakSanitizer looks after that, and a module that is gone has no name to suppress by.
extern "C" int dlclose(void*) { return 0; }
#endif

namespace manyranks {
namespace {

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// LibTorch's word for it is a text on a CPU and a class of its own on a GPU; the standard library has std::bad_alloc.
bool is_out_of_memory(const std::exception& error) {
  const std::string text = error.what();
  return dynamic_cast<const std::bad_alloc*>(&error) || text.find("can't allocate memory") != std::string::npos || text.find("out of memory") != std::string::npos;
}

// --help was asked for and given: nothing is wrong, and nothing more is to be done.
struct HelpGiven {};

void parse(Options& options, int argc, char** argv, bool is_root) {
  try {
    options.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw usage_error(options.name(), error.what(), "--help");
    if (is_root) fmt::print("{}", options.help());
    throw HelpGiven{};
  }
}

}  // namespace

Process::Process(int argc, char** argv) : argc_(argc), argv_(argv), host_(host_name()) {
  cpu_note_ = make_cpu_safe();  // before LibTorch first asks oneDNN what the CPU can do
  try {
    identity_ = identify(environment_variable);
  } catch (const Error& error) {
    identity_error_ = error;  // thrown again in start(): --help must work whatever the environment says
  }
}

Process::~Process() = default;

int Process::run(const std::function<void()>& body) {
  try {
    body();
    end_in_order();
    return static_cast<int>(Exit::good);
  } catch (const HelpGiven&) {
    return static_cast<int>(Exit::good);
  } catch (const Skip& skip) {
    return end_skipped(skip);
  } catch (const Error& error) {
    end_job(error);
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) end_job(unavailable_error("memory", error.what(), "a smaller --batch or model, more ranks to share it"));
    end_job(Error(Exit::disagree, "unexpected", error.what()));
  } catch (...) {
    end_job(Error(Exit::disagree, "unexpected", "an exception that is no std::exception"));
  }
}

void Process::start(Options& options) {
  options_ = &options;
  parse(options, argc_, argv_, is_root());
  if (identity_error_) throw *identity_error_;
  if (identity_.source == Identity::Source::mpi) start_mpi();
  rendezvous_ = mpi_started_ ? rendezvous_by_mpi(options.timeout_s)
                : identity_.source == Identity::Source::variables && world_size() > 1
                    ? rendezvous_by_store(identity_, options.timeout_s)
                    : rendezvous_alone();
  torch::set_num_threads(options.threads);
  CountingAllocator::install().set_cap(options.memory_cap);  // every program: it also keeps freed blocks, which saves a tenth of a step
  learn_places();
  pick_device();
  if (is_root() && !options.json) fmt::print("{} | {} rank(s) on {} node(s), {}, {} thread(s) each, launched {}\n", options.summary(), world_size(), nodes(), device_.str(), options.threads, identity_.launcher);
}

void Process::start_mpi() {
  int provided = 0;
  if (MPI_Init_thread(&argc_, &argv_, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
    throw unavailable_error("MPI_Init_thread", "MPI could not be started");
  mpi_started_ = true;
  if (provided < MPI_THREAD_MULTIPLE)
    throw unavailable_error("MPI_Init_thread", "this MPI gives no MPI_THREAD_MULTIPLE, which the watchdog and overlap need");
  CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  int rank = 0, size = 0;
  CHECK_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
  if (rank != identity_.rank || (identity_.world_size && size != identity_.world_size))
    throw usage_error("MPI_Init_thread",
                      fmt::format("MPI says rank {} of {}, the launcher said rank {} of {}", rank, size, identity_.rank, identity_.world_size),
                      "the mpirun of the MPI that this was built with");
  identity_.world_size = size;
}

// Everybody tells host name and GPU count; nodes are numbered in order of their lowest rank.
void Process::learn_places() {
  const int gpus = static_cast<int>(torch::cuda::device_count());
  const auto all = rendezvous_->all_gather(host_ + "\n" + std::to_string(gpus));
  std::vector<int> ranks_on_node;
  for (int r = 0; r < world_size(); ++r) {
    const std::string host = all[r].substr(0, all[r].find('\n'));
    size_t node = 0;
    while (node < hosts_.size() && hosts_[node] != host) ++node;
    if (node == hosts_.size()) hosts_.push_back(host), ranks_on_node.push_back(0);
    places_.push_back(Place{r, static_cast<int>(node), ranks_on_node[node]++, {}});
  }
  node_ = places_[rank()].node;
  local_rank_ = places_[rank()].local_rank;
  local_size_ = ranks_on_node[node_];
  // torchrun may number local ranks in its own way; only a contradiction that would put two ranks on one GPU matters.
  if (identity_.local_rank && *identity_.local_rank != local_rank_)
    throw usage_error("placing ranks",
                      fmt::format("the launcher says local rank {}, but this is number {} of the ranks on {}", *identity_.local_rank, local_rank_, host_),
                      "ranks of one node must be consecutive (mpirun --map-by core, srun --distribution=block)");
  for (auto& place : places_) {
    const int node_gpus = std::stoi(all[place.rank].substr(all[place.rank].find('\n') + 1));
    if (place.local_rank < node_gpus) place.devices = {place.local_rank};
  }
}

void Process::pick_device() {
  const bool has_gpu = torch::cuda::is_available();
  if (options_->device == "cuda" && !has_gpu)
    throw unavailable_error("--device cuda", "no usable GPU on " + host_, "--device cpu, or build/common/doctor to see why");
  const bool use_gpu = has_gpu && options_->device != "cpu";
  if (use_gpu && places_[rank()].devices.empty())
    throw unavailable_error("--device", fmt::format("{} ranks on {}, but only {} GPU(s)", local_size_, host_, torch::cuda::device_count()),
                            "one rank per GPU, or --device cpu");
  if (use_gpu) {
    device_ = torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(local_rank_));
  } else {
    for (auto& place : places_) place.devices.clear();
  }
}

bool Process::oversubscribed() const {
  return options_ && local_size_ * options_->threads > static_cast<int>(std::thread::hardware_concurrency());
}

Communicator& Process::world() {
  if (!world_) {
    world_ = connect(*this);
    connected_ = world_.get();
  }
  return *world_;
}

void Process::end_in_order() {
  if (world_) world_->finish();  // a barrier with a time limit: MPI_Finalize has none
  connected_ = nullptr;          // finish() has ended the watch
  world_.reset();
  rendezvous_.reset();
  if (mpi_started_) MPI_Finalize();
  mpi_started_ = false;
}

// When every rank fails alike (a wrong flag), mpirun kills the others as soon as one ends: rank 0 must speak first.
void Process::let_root_speak_first() const {
  if (identity_.rank != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

// Whether the others skip too is not known here: one that does not would wait for this rank, so the whole job ends, as
// for an error.
int Process::end_skipped(const Skip& skip) {
  const bool required = is_required(skip.need);
  const int code = static_cast<int>(required ? Exit::wrong : Exit::skipped);
  const std::string line =
      fmt::format("manyranks: {} ({}): {}", required ? "error: MANYRANKS_REQUIRE forbids this skip" : "skipped",
                  skip.need, skip.reason);
  if (rendezvous_ && world_size() > 1) {
    let_root_speak_first();
    end_job(code, line);
  }
  if (is_root()) fmt::print(stderr, "{}\n", line);
  std::fflush(stdout);
  end_in_order();
  return code;
}

void Process::end_job(const Error& error) {
  end_job(static_cast<int>(error.code), error_line(error, rank(), std::max(1, world_size()), host_, step_));
}

void Process::end_job(int code, const std::string& line) {
  std::fflush(stdout);
  Communicator* const world = connected_;
  // Peers often find the same fault at the same moment: the first one speaks and ends the job. With MPI the others wait for its
  // MPI_Abort; without, they end by themselves, before the first one ends them by force (end_peers) and their exit code is a signal's.
  if (world && !world->claim_failure(code, line)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(mpi_started_ ? 3000 : 200));
    _exit(code);
  }
  if (!rendezvous_) let_root_speak_first();
  // Before the ranks have met, all fail alike under one mpirun; started by variables each has its own terminal, and its own cause.
  if (rendezvous_ || is_root() || identity_.source == Identity::Source::variables) fmt::print(stderr, "{}\n", line);
  std::fflush(stderr);
  if (rendezvous_) rendezvous_->end_job(code);  // with MPI this does not return
  if (world) world->end_peers();
  _exit(code);
}

}  // namespace manyranks
