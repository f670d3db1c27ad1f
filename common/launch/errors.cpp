#include "launch/errors.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <sstream>

namespace manyranks {

Error::Error(Exit code_, std::string operation_, std::string cause_, std::string hint_)
    : std::runtime_error(operation_ + ": " + cause_),
      code(code_),
      operation(std::move(operation_)),
      cause(std::move(cause_)),
      hint(std::move(hint_)) {}

Error usage_error(std::string operation, std::string cause, std::string hint) {
  return Error(Exit::usage, std::move(operation), std::move(cause), std::move(hint));
}
Error data_error(std::string operation, std::string cause, std::string hint) {
  return Error(Exit::data, std::move(operation), std::move(cause), std::move(hint));
}
Error unavailable_error(std::string operation, std::string cause, std::string hint) {
  return Error(Exit::unavailable, std::move(operation), std::move(cause), std::move(hint));
}
Error disagree_error(std::string operation, std::string cause, std::string hint) {
  return Error(Exit::disagree, std::move(operation), std::move(cause), std::move(hint));
}
Error io_error(std::string operation, std::string cause, std::string hint) {
  return Error(Exit::io, std::move(operation), std::move(cause), std::move(hint));
}
Error lost_peer_error(std::string operation, std::string cause, std::string hint) {
  return Error(Exit::lost_peer, std::move(operation), std::move(cause), std::move(hint));
}
Error verify_error(std::string operation, std::string cause, std::string hint) {
  return Error(Exit::wrong, std::move(operation), std::move(cause), std::move(hint));
}

Skip::Skip(std::string need_, std::string reason_)
    : std::runtime_error(reason_), need(std::move(need_)), reason(std::move(reason_)) {}

bool is_required(const std::string& need, const char* list) {
  std::istringstream words(list ? list : "");
  for (std::string word; std::getline(words, word, ',');)
    if (word == need) return true;
  return false;
}

bool is_required(const std::string& need) { return is_required(need, std::getenv("MANYRANKS_REQUIRE")); }

std::string error_line(const Error& error, int rank, int world_size, const std::string& host, long step) {
  std::string line = fmt::format("manyranks: error: rank {} of {}, host {}", rank, world_size, host);
  if (step >= 0) line += fmt::format(", step {}", step);
  line += fmt::format(", {}: {}", error.operation, error.cause);
  if (!error.hint.empty()) line += "; try: " + error.hint;
  return line + fmt::format(" [exit {}]", static_cast<int>(error.code));
}

}  // namespace manyranks
