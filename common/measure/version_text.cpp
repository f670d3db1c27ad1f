// The pure parts of versions.hpp: they need neither MPI nor LibTorch.
#include <fmt/format.h>

#include <regex>

#include "measure/versions.hpp"

namespace manyranks {

// Open MPI: "Open MPI v4.1.4, package: ...". MPICH and its children: "MPICH Version:\t4.0.2\nMPICH Release date: ...".
std::string short_mpi_version(const std::string& text) {
  std::smatch found;
  if (std::regex_search(text, found, std::regex(R"(^\s*([A-Za-z][A-Za-z() ]*?)(?:\s+Library)?\s+(?:[Vv]ersion\s*:?\s*|v)([0-9][^\s,]*))")))
    return found[1].str() + " " + found[2].str();
  return text.substr(0, text.find('\n'));
}

std::string nccl_code_to_version(int code) {
  // Up to 2.8 the code was 2.x.y -> 2xyy, then 2.x.y -> 2xxyy.
  if (code < 10000) return fmt::format("{}.{}.{}", code / 1000, code / 100 % 10, code % 100);
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

std::string find_driver_version(const std::string& text) {
  std::smatch found;
  return std::regex_search(text, found, std::regex(R"(\b([0-9]{3,}\.[0-9]+(?:\.[0-9]+)?)\b)")) ? found[1].str() : "";
}

}  // namespace manyranks
