#include "measure/csv.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>
#include <vector>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

Error file_error(const std::string& path, const std::string& doing, int code) {
  return io_error(doing + " " + path, std::strerror(code), code == ENOENT ? "make the folder first" : "");
}

class File {
 public:
  explicit File(const std::string& path) : path_(path), descriptor_(open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) throw file_error(path, "opening", errno);
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void lock() {
    if (flock(descriptor_, LOCK_EX) != 0) throw file_error(path_, "locking", errno);  // given back by close()
  }
  off_t size() const {
    struct stat status {};
    if (fstat(descriptor_, &status) != 0) throw file_error(path_, "looking at", errno);
    return status.st_size;
  }
  std::string read(off_t offset, size_t most) const {
    std::string text(most, '\0');
    const ssize_t got = pread(descriptor_, text.data(), most, offset);
    if (got < 0) throw file_error(path_, "reading", errno);
    text.resize(static_cast<size_t>(got));
    return text;
  }
  void write(const std::string& text) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written < 0) throw file_error(path_, "writing", errno);
    if (static_cast<size_t>(written) != text.size())
      throw io_error("writing " + path_, fmt::format("only {} of {} bytes were written", written, text.size()), "free some disk space, and remove the last line");
  }

 private:
  const std::string& path_;
  int descriptor_;
};

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> names;
  std::istringstream text(line);
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

void check_header(const std::string& path, const std::string& first_line) {
  const auto found = split(first_line);
  for (size_t i = 0; i < std::max(found.size(), csv_columns.size()); ++i) {
    const std::string have = i < found.size() ? fmt::format("'{}'", found[i]) : "missing";
    const std::string want = i < csv_columns.size() ? fmt::format("'{}'", csv_columns[i]) : "nothing more";
    if (have != want)
      throw io_error("appending to " + path, fmt::format("column {} of its header is {}, where this program writes {}", i + 1, have, want),
                     "another --csv file, or move the old one away");
  }
}

}  // namespace

Row& Row::set(Column column, std::string_view text) {
  cells_[column.index()] = text;
  return *this;
}

Row& Row::set(Column column, double value) {
  if (!std::isfinite(value))
    throw disagree_error("writing a measurement", fmt::format("{} is {}", csv_columns[column.index()], value), "look at the loss and the step times of this run");
  return set(column, std::string_view(fmt::format("{}", value)));  // the shortest text that reads back as the same number
}

std::string Row::line() const {
  std::string text;
  for (const auto& cell : cells_) text += csv_quote(cell) + ',';
  text.back() = '\n';
  return text;
}

std::string csv_header() {
  std::string text;
  for (const auto name : csv_columns) text += std::string(name) + ',';
  text.back() = '\n';
  return text;
}

std::string csv_quote(std::string_view cell) {
  if (cell.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(cell);
  std::string text = "\"";
  for (const char c : cell) {
    if (c == '"') text += '"';
    text += c;
  }
  return text + '"';
}

CsvWriter::CsvWriter(std::string path) : path_(std::move(path)) {
  File file(path_);
  file.lock();  // two programs may create the file at the same moment
  const off_t size = file.size();
  if (size == 0) {
    file.write(csv_header());
    return;
  }
  const std::string start = file.read(0, 4096);
  check_header(path_, start.substr(0, start.find('\n')));
  if (file.read(size - 1, 1) != "\n")
    throw io_error("appending to " + path_, "it ends in the middle of a row", "remove its last line");
}

void CsvWriter::append(const Row& row) { File(path_).write(row.line()); }

}  // namespace manyranks
