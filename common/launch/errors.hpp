// How a program ends when something is wrong: exceptions inside, one line and one exit code outside.
#pragma once

#include <stdexcept>
#include <string>

namespace manyranks {

// sysexits.h where it has a fitting code; 77 is what CTest shows as Skipped.
enum class Exit : int {
  good = 0,
  wrong = 1,         // verification failed
  usage = 64,        // wrong flags or launch variables
  data = 65,         // a file is not what it should be
  unavailable = 69,  // device or backend not there
  disagree = 70,     // ranks disagree, or a number is not finite
  io = 74,           // reading or writing failed
  lost_peer = 75,    // timed out or lost a peer; restarting may help
  skipped = 77,      // something this program needs is missing
};

class Error : public std::runtime_error {
 public:
  // operation: what was being done ("all_reduce #12"); cause: what went wrong; hint: what to try (may be empty).
  Error(Exit code, std::string operation, std::string cause, std::string hint = "");
  Exit code;
  std::string operation, cause, hint;
};

// One constructor per exit code, so that a throw reads as what it means.
Error usage_error(std::string operation, std::string cause, std::string hint = "");
Error data_error(std::string operation, std::string cause, std::string hint = "");
Error unavailable_error(std::string operation, std::string cause, std::string hint = "");
Error disagree_error(std::string operation, std::string cause, std::string hint = "");
Error io_error(std::string operation, std::string cause, std::string hint = "");
Error lost_peer_error(std::string operation, std::string cause, std::string hint = "");
Error verify_error(std::string operation, std::string cause, std::string hint = "");

// Thrown by a program that cannot do its work here. `need` is the word that MANYRANKS_REQUIRE knows:
// gpu, nccl, multinode, root, slurm, gloo, rivals, ...
class Skip : public std::runtime_error {
 public:
  Skip(std::string need, std::string reason);
  std::string need, reason;
};

// True if MANYRANKS_REQUIRE (a comma-separated list) names `need`: then a skip for that reason is a failure.
bool is_required(const std::string& need, const char* list);
bool is_required(const std::string& need);

// "manyranks: error: rank 1 of 4, host n1, step 12, all_reduce #3: cause; try: hint [exit 75]"
std::string error_line(const Error& error, int rank, int world_size, const std::string& host, long step);

}  // namespace manyranks
