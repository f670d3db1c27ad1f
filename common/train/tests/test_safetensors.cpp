// Good files, a table of bad ones, and saves that are interrupted.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "data/tests/temporary_folder.hpp"  // TemporaryFolder
#include "launch/errors.hpp"
#include "train/safetensors.hpp"

namespace manyranks::safetensors {
namespace {

// As the tests of this file ask for it: names of files, and how many there are.
struct Folder : TemporaryFolder {
  std::string file(const std::string& name) const { return path() / name; }
  size_t files() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path()), {})); }
};

std::string length_prefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

std::string file_of(const std::string& json, size_t data_bytes) { return length_prefix(json.size()) + json + std::string(data_bytes, 'x'); }

std::span<const uint8_t> as_bytes(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

TEST(Safetensors, ParsesWhatTheFormatAllows) {
  const std::string json = R"({"b":{"dtype":"U8","shape":[0,7],"data_offsets":[8,8]},"__metadata__":{"k":"v"},)"
                           R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"s":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}}   )";
  const Header header = parse(as_bytes(file_of(json, 10)), "good");
  ASSERT_EQ(header.entries.size(), 3U);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(header.entries[1].name, "b");
  EXPECT_EQ(header.entries[2].dtype, "BF16");
  EXPECT_EQ(header.metadata.at("k"), "v");
  EXPECT_EQ(header.data_offset, 8 + json.size());
  EXPECT_TRUE(parse(as_bytes(file_of("{}", 0)), "empty").entries.empty());
}

struct Bad {
  std::string what, bytes, says;
};

std::string one(const std::string& description, size_t data_bytes) { return file_of("{\"t\":" + description + "}", data_bytes); }

std::vector<Bad> bad_files() {
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  std::string deep = "{\"t\":";
  for (int i = 0; i < 10000; ++i) deep += '[';
  std::string long_shape = "0";
  for (int i = 0; i < 10000; ++i) long_shape += ",0";
  return {
      {"empty file", "", "too few"},
      {"shorter than the prefix", "\1\0\0", "too few"},
      {"header over the cap", length_prefix(100'000'001) + "{}", "more than"},
      {"header length of all ones", std::string(8, '\xFF') + "{}", "more than"},
      {"header longer than the file", length_prefix(64) + "{}", "in a file of"},
      {"header of length 0", length_prefix(0), "begin with {"},
      {"header of blanks", file_of("    ", 0), "begin with {"},
      {"a list for a header", file_of("[]", 0), "begin with {"},
      {"JSON cut off", file_of("{\"t\":" + good, 8), "not JSON"},
      {"text behind the JSON", file_of("{} {}", 0), "not JSON"},
      {"invalid UTF-8", file_of("{\"\xFF\":1}", 0), "not JSON"},
      {"nested deeply", file_of(deep, 0), "too deeply"},
      {"tensor twice", file_of("{\"t\":" + good + ",\"t\":" + good + "}", 8), "twice"},
      {"tensor is a number", one("5", 0), "by an object"},
      {"no dtype", one(R"({"shape":[2],"data_offsets":[0,8]})", 8), "no dtype"},
      {"unknown dtype", one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", 8), "unknown dtype"},
      {"dtype is a number", one(R"({"dtype":4,"shape":[2],"data_offsets":[0,8]})", 8), "unknown dtype"},
      {"no shape", one(R"({"dtype":"F32","data_offsets":[0,8]})", 8), "no shape"},
      {"negative size", one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8), "not negative"},
      {"size with a fraction", one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", 8), "whole number"},
      {"number out of range", one(R"({"dtype":"F32","shape":[1e999],"data_offsets":[0,8]})", 8), "out of range"},
      {"product overflows to 8", one(R"({"dtype":"F32","shape":[4611686018427387905,2],"data_offsets":[0,8]})", 8), "overflows"},
      {"size over 63 bits", one(R"({"dtype":"U8","shape":[9223372036854775808,0],"data_offsets":[0,0]})", 0), "overflows"},
      {"shape without end", one("{\"dtype\":\"F32\",\"shape\":[" + long_shape + "],\"data_offsets\":[0,0]}", 0), "too long"},
      {"no offsets", one(R"({"dtype":"F32","shape":[2]})", 8), "no data_offsets"},
      {"three offsets", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})", 8), "[begin, end]"},
      {"offsets reversed", one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8), "needs 8 bytes"},
      {"offsets too short for the shape", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4), "needs 8 bytes"},
      {"a fourth member", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", 8), "more than dtype"},
      {"data cut off", one(good, 7), "behind the end"},
      {"bytes left over", one(good, 9), "belong to no tensor"},
      {"offsets far outside", one(R"({"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]})", 1), "hole"},
      {"hole", file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", 3), "hole"},
      {"overlap", file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3),
       "overlaps"},
      {"metadata is a list", file_of(R"({"__metadata__":[]})", 0), "not an object"},
      {"metadata holds a number", file_of(R"({"__metadata__":{"k":1}})", 0), "not a string"},
  };
}

TEST(Safetensors, RefusesBadFilesNamingFileAndOffset) {
  const Folder folder;
  for (const Bad& bad : bad_files()) {
    const std::string path = folder.file("bad.safetensors");
    std::ofstream(path, std::ios::binary) << bad.bytes;
    try {
      const Reader reader(path);
      ADD_FAILURE() << bad.what << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code, Exit::data) << bad.what;
      EXPECT_NE(error.operation.find(path), std::string::npos) << bad.what;
      EXPECT_NE(error.cause.find(bad.says), std::string::npos) << bad.what << ": " << error.cause;
      EXPECT_NE(error.cause.find("at offset "), std::string::npos) << bad.what << ": " << error.cause;
    }
  }
}

TEST(Safetensors, FileThatCannotBeReadIsAnInputOutputError) {
  const Folder folder;
  for (const std::string& path : {folder.file("nowhere"), folder.file(".")}) {
    try {
      const Reader reader(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code, Exit::io) << path;
    }
  }
}

TEST(Safetensors, SaveAndReadBack) {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  const std::vector<uint8_t> bytes = {1, 2, 3};
  const std::vector<float> floats = {1.5F, -0.0F, 3e38F};
  save(path, {{"bytes", "U8", {3}, bytes.data()}, {"floats", "F32", {3, 1}, floats.data()}}, {{"step", "7"}});
  const Reader reader(path);
  EXPECT_EQ(reader.header().metadata.at("step"), "7");
  EXPECT_EQ(reader.header().data_offset % 8, 0U);
  const Entry* entry = reader.find("floats");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->begin, 0U) << "wider types come first, so that they are aligned";
  std::vector<float> back(3);
  reader.read(*entry, back.data());
  EXPECT_EQ(std::memcmp(back.data(), floats.data(), 12), 0);
  std::vector<uint8_t> bytes_back(3);
  reader.read(*reader.find("bytes"), bytes_back.data());
  EXPECT_EQ(bytes_back, bytes);
  EXPECT_EQ(reader.find("nothing"), nullptr);
  EXPECT_EQ(folder.files(), 1U) << "no temporary file stays";
  EXPECT_THROW(save(path, {{"x", "U8", {1}, bytes.data()}, {"x", "U8", {1}, bytes.data()}}), Error);
  EXPECT_THROW(save(path, {{"x", "C64", {1}, bytes.data()}}), Error);
}

// Every byte of a file says which save it came from: a mixture would show.
void save_generation(const std::string& path, uint8_t generation, size_t count) {
  const std::vector<uint8_t> bytes(count, generation);
  save(path, {{"bytes", "U8", {static_cast<int64_t>(count)}, bytes.data()}});
}

uint8_t generation_of(const std::string& path) {
  const Reader reader(path);
  const Entry& entry = reader.header().entries.at(0);
  std::vector<uint8_t> bytes(entry.end - entry.begin);
  reader.read(entry, bytes.data());
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), bytes[0]), static_cast<ptrdiff_t>(bytes.size()));
  return bytes[0];
}

// A disk that fills up, by way of a limit on file size.
TEST(AtomicSave, FailedWriteLeavesTheOldFile) {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  save_generation(path, 1, 1000);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{100'000, 100'000};
    ::signal(SIGXFSZ, SIG_IGN);
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    try {
      save_generation(path, 2, 10'000'000);
    } catch (const Error& error) {
      ::_exit(error.code == Exit::io ? 74 : 3);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 74);
  EXPECT_EQ(generation_of(path), 1);
  EXPECT_EQ(folder.files(), 1U) << "the temporary file is gone";
}

// In a folder that others may write to, somebody may have put a link where a temporary file was expected.
TEST(AtomicSave, FollowsNoLinkUnderAGuessedName) {
  const Folder folder;
  const std::string path = folder.file("model.safetensors"), precious = folder.file("precious");
  std::ofstream(precious) << "not to be touched";
  const std::string guess = path + ".tmp." + std::to_string(getpid());
  ASSERT_EQ(symlink(precious.c_str(), guess.c_str()), 0);
  const std::vector<float> values{1, 2};
  save(path, {{"a", "F32", {2}, values.data()}});
  std::string text;
  std::getline(std::ifstream(precious), text);
  EXPECT_EQ(text, "not to be touched");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  EXPECT_EQ(folder.files(), 3U);  // the model, the precious file, the link
}

TEST(AtomicSave, PermissionsAreThoseOfTheUmask) {
  const Folder folder;
  const std::vector<float> values{1, 2};
  for (const auto& [mask, mode] : {std::pair<mode_t, int>{022, 0644}, {077, 0600}, {002, 0664}}) {
    const mode_t before = umask(mask);
    save(folder.file("model"), {{"a", "F32", {2}, values.data()}});
    umask(before);
    EXPECT_EQ(static_cast<int>(std::filesystem::status(folder.file("model")).permissions()), mode);
  }
}

TEST(AtomicSave, KilledAtAnyMomentLeavesAWholeFile) {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  save_generation(path, 0, 1'000'000);
  for (int i = 1; i <= 20; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (uint8_t generation = 1;; ++generation) save_generation(path, generation, 1'000'000);
    }
    ::usleep(static_cast<useconds_t>(500 * i));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    generation_of(path);  // throws or fails if it is not whole
  }
}

}  // namespace
}  // namespace manyranks::safetensors
