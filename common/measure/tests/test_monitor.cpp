// The monitor with a probe of the test's own, a /proc of the test's own, and a library that pretends to be NVML; event files bytewise.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "data/tests/temporary_folder.hpp"  // TemporaryFolder
#include "launch/errors.hpp"
#include "measure/monitor.hpp"
#include "measure/tensorboard.hpp"

namespace manyranks {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CountingProbe : public Probe {
 public:
  void fill(MonitorSample& sample) override { sample.gpu_watts = calls_++; }
  std::string name() const override { return "counting"; }

 private:
  double calls_ = 0;
};

std::vector<std::unique_ptr<Probe>> only(std::unique_ptr<Probe> probe) {
  std::vector<std::unique_ptr<Probe>> probes;
  probes.push_back(std::move(probe));
  return probes;
}

TEST(DeviceMonitor, SamplesUntilStopped) {
  DeviceMonitor monitor(1e-3, only(std::make_unique<CountingProbe>()));
  while (monitor.samples().size() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  monitor.stop();
  const auto samples = monitor.samples();
  const auto n = static_cast<double>(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].gpu_watts, static_cast<double>(i + 1));
  for (size_t i = 1; i < samples.size(); ++i) EXPECT_GE(samples[i].time_s, samples[i - 1].time_s);
  const auto watts = monitor.statistics(&MonitorSample::gpu_watts);
  EXPECT_EQ(watts.count, static_cast<int>(samples.size()));
  EXPECT_DOUBLE_EQ(watts.max, n);
  EXPECT_NEAR(watts.mean, (n + 1) / 2, 1e-9);
  EXPECT_EQ(monitor.statistics(&MonitorSample::gpu_percent).count, 0);
  EXPECT_NE(monitor.summary().find("power"), std::string::npos);
  EXPECT_NE(monitor.summary().find("counting"), std::string::npos);
  EXPECT_EQ(monitor.summary().find("gpu memory"), std::string::npos) << "nothing is said about what was not measured";
  monitor.stop();
  EXPECT_EQ(monitor.samples().size(), samples.size());
}

TEST(DeviceMonitor, ShortRunHasOneSampleAndACsv) {
  const TemporaryFolder folder;
  DeviceMonitor monitor(3600, only(std::make_unique<CountingProbe>()));
  monitor.stop();
  monitor.write_csv(folder.path() / "m.csv");
  std::istringstream lines(text_of(folder.path() / "m.csv"));
  std::string header, row, more;
  std::getline(lines, header);
  std::getline(lines, row);
  EXPECT_EQ(header, "time_s,cpu_percent,process_percent,process_bytes,gpu_percent,gpu_bytes,gpu_watts");
  EXPECT_EQ(row.substr(row.find(',')), ",,,,,,1");
  EXPECT_FALSE(std::getline(lines, more));
  EXPECT_THROW(monitor.write_csv("/nowhere/m.csv"), Error);
  EXPECT_THROW(DeviceMonitor(0, {}), Error);
}

void write_proc(const TemporaryFolder& folder, const std::string& cpu, const std::string& user_and_system) {
  std::filesystem::create_directories(folder.path() / "self");
  std::ofstream(folder.path() / "stat") << "cpu  " << cpu << "\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n";
  std::ofstream(folder.path() / "self/stat") << "17 (odd) name) R 1 2 3 4 5 6 7 8 9 10 " << user_and_system << " 0 0 20 0\n";
  std::ofstream(folder.path() / "self/statm") << "1000 300 5 1 0 4 0\n";
}

TEST(CpuProbe, LoadIsTheDifferenceOfTwoReadings) {
  const TemporaryFolder folder;
  const auto probe = cpu_probe(folder.path().string());
  MonitorSample first, second, third;
  write_proc(folder, "100 0 50 800 50 0 0 0 90 0", "60 10");
  probe->fill(first);
  EXPECT_TRUE(std::isnan(first.cpu_percent));
  EXPECT_EQ(first.process_bytes, 300.0 * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  write_proc(folder, "220 0 80 840 60 0 0 0 95 0", "160 20");  // +200 ticks on 2 cores: 150 busy, 110 of them ours
  probe->fill(second);
  EXPECT_DOUBLE_EQ(second.cpu_percent, 75.0);
  EXPECT_DOUBLE_EQ(second.process_percent, 110.0);
  probe->fill(third);  // no time has passed
  EXPECT_TRUE(std::isnan(third.cpu_percent));
}

TEST(CpuProbe, TheRealOneAndAMissingOne) {
  MonitorSample here, nowhere;
  cpu_probe()->fill(here);
  EXPECT_GT(here.process_bytes, 1e5);
  cpu_probe("/nowhere")->fill(nowhere);
  EXPECT_TRUE(std::isnan(nowhere.process_bytes));
}

TEST(NvmlProbe, ReadsADeviceAndEndsItsSession) {
  void* library = ::dlopen(FAKE_NVML, RTLD_NOW);  // held, so that its counter outlives the probes
  ASSERT_NE(library, nullptr);
  std::string why;
  for (const std::string device : {"0", "0000:0A:00.0"}) {
    auto probe = nvml_probe(device, &why, FAKE_NVML);
    ASSERT_NE(probe, nullptr) << why;
    EXPECT_EQ(probe->name(), "NVML (Pretend 100)");
    MonitorSample first, second;
    probe->fill(first);
    probe->fill(second);
    EXPECT_EQ(second.gpu_percent, first.gpu_percent + 10);
    EXPECT_EQ(first.gpu_bytes, 40.0);
    EXPECT_TRUE(std::isnan(first.gpu_watts)) << "not supported is not 0";
  }
  EXPECT_EQ(reinterpret_cast<int (*)()>(::dlsym(library, "fake_nvml_sessions"))(), 0) << "every nvmlInit needs its nvmlShutdown";
  ::dlclose(library);
}

TEST(NvmlProbe, SaysWhyThereIsNone) {
  std::string why;
  EXPECT_EQ(nvml_probe("0", &why, "libno-such-thing.so"), nullptr);
  EXPECT_NE(why.find("libno-such-thing"), std::string::npos);
  EXPECT_EQ(nvml_probe("0", &why, "libc.so.6"), nullptr);
  EXPECT_NE(why.find("lacks"), std::string::npos);
  EXPECT_EQ(nvml_probe("1", &why, FAKE_NVML), nullptr);
  EXPECT_NE(why.find("no device 1"), std::string::npos);
  EXPECT_EQ(nvml_probe("first", &why, FAKE_NVML), nullptr);
  EXPECT_EQ(standard_probes("").size(), 1U);
}

TEST(Tensorboard, Crc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(masked_crc32c("123456789"), ((0xE3069283U >> 15) | (0xE3069283U << 17)) + 0xA282EAD8U);
}

TEST(Tensorboard, EventIsTheMessageThatProtobufWouldWrite) {
  const std::string expected("\x09\0\0\0\0\0\0\xF8\x3F"   // wall_time 1.5
                             "\x10\xAC\x02"               // step 300
                             "\x2A\x0B\x0A\x09"           // summary, its first value
                             "\x0A\x02lr\x15\0\0\x80\x3E",  // tag "lr", 0.25
                             25);
  EXPECT_EQ(scalar_event("lr", 0.25F, 300, 1.5), expected);
}

TEST(Tensorboard, FileIsARowOfSoundRecords) {
  const TemporaryFolder folder;
  std::string path;
  {
    EventWriter events((folder.path() / "a/b").string());
    path = events.path();
    events.scalar("loss", 2.0, 1);
    events.scalar("loss", 1.0, 2);
  }
  const std::string bytes = text_of(path);
  size_t at = 0, records = 0;
  for (; at < bytes.size(); ++records) {
    uint64_t length = 0;
    uint32_t crc_of_length = 0, crc_of_data = 0;
    std::memcpy(&length, &bytes[at], 8);
    std::memcpy(&crc_of_length, &bytes[at + 8], 4);
    ASSERT_EQ(crc_of_length, masked_crc32c(bytes.substr(at, 8)));
    ASSERT_LE(at + 16 + length, bytes.size());
    std::memcpy(&crc_of_data, &bytes[at + 12 + length], 4);
    ASSERT_EQ(crc_of_data, masked_crc32c(bytes.substr(at + 12, length)));
    at += 16 + length;
  }
  EXPECT_EQ(records, 3U);
  EXPECT_THROW(EventWriter("/proc/nowhere"), Error);
}

}  // namespace
}  // namespace manyranks
