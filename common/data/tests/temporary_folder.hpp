// A folder for one test, gone with it; and files in it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "data/file.hpp"  // Bytes

namespace manyranks {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "manyranks_data_XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const Bytes& bytes) const {
    const auto file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return file;
  }

 private:
  std::filesystem::path path_;
};

// Runs `action`, which must throw an Error of this exit code whose line names `file` and contains `what`.
template <typename Action>
void expect_error(Exit code, const std::string& file, const std::string& what, Action action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected: " << what;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(static_cast<int>(error.code), static_cast<int>(code)) << text;
    EXPECT_NE(text.find(file), std::string::npos) << text << "\n does not name " << file;
    EXPECT_NE(text.find(what), std::string::npos) << text << "\n does not contain " << what;
  }
}

}  // namespace manyranks
