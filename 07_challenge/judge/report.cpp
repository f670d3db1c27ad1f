#include "report.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "launch/errors.hpp"  // io_error

namespace manyranks {

Report::Report(const std::string& file, std::string word) : file_(file.empty() ? STDOUT_FILENO : open(file.c_str(), O_WRONLY | O_APPEND)), word_(std::move(word)) {
  if (file_ < 0) throw io_error("--report", "cannot open " + file);
}

Report::~Report() {
  if (file_ != STDOUT_FILENO) close(file_);
}

// One write per line: ranks that write at once do not mix. What was seen may hold any bytes of a learner's: replaced where they are no UTF-8.
void Report::line(const std::string& json) {
  const std::string whole = word_ + " " + json + "\n";
  if (write(file_, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size())) throw io_error("--report", "cannot write");
}

namespace {
std::string dump(const nlohmann::json& json) { return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }
}  // namespace

void Report::exercise(const std::string& name, int ranks, const std::string& device) { line(dump({{"exercise", name}, {"ranks", ranks}, {"device", device}})); }
void Report::trying(const std::string& check) { line(dump({{"trying", check}})); }
void Report::check(const std::string& check, bool ok, const std::string& seen, const std::string& hint) {
  line(dump({{"check", check}, {"ok", ok}, {"seen", seen.substr(0, 400)}, {"hint", hint}}));
}
void Report::end(const std::string& name) { line(dump({{"end", name}})); }

}  // namespace manyranks
