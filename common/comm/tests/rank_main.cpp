#include "comm/tests/rank_main.hpp"

#include <gtest/gtest.h>

#include <set>

namespace manyranks::test {
namespace {

Process* running = nullptr;

// Keeps the reasons of skipped tests, and lets only rank 0 report what passed.
class Reporter : public testing::EmptyTestEventListener {
 public:
  explicit Reporter(int rank) : rank_(rank) {}
  void OnTestStart(const testing::TestInfo& test) override {
    if (rank_ == 0) fmt::print("[ RUN      ] {}.{}\n", test.test_suite_name(), test.name());
    std::fflush(stdout);
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      fmt::print(stderr, "rank {}: {}:{}: {}\n", rank_, result.file_name() ? result.file_name() : "?", result.line_number(), result.message());
    if (result.skipped()) skips.insert(result.message());
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (rank_ == 0) fmt::print("{} {}.{} ({} ms)\n", test.result()->Failed() ? "[  FAILED  ]" : test.result()->Skipped() ? "[  SKIPPED ]" : "[       OK ]", test.test_suite_name(), test.name(), test.result()->elapsed_time());
    std::fflush(stdout);
  }
  std::set<std::string> skips;

 private:
  int rank_;
};

}  // namespace

Process& process() { return *running; }

}  // namespace manyranks::test

// A skip reads GTEST_SKIP() << "gloo: reason": the word before the colon is what MANYRANKS_REQUIRE knows.
int main(int argc, char** argv) {
  using namespace manyranks;
  testing::InitGoogleTest(&argc, argv);
  Process process(argc, argv);
  test::running = &process;
  return process.run([&] {
    Options options("test", "a GoogleTest program on ranks");
    options.timeout_s = 60;
    process.start(options);
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    auto* reporter = new test::Reporter(process.rank());  // GoogleTest owns it
    listeners.Append(reporter);
    const bool failed = RUN_ALL_TESTS() != 0;
    auto failures = torch::tensor({failed ? 1 : 0}, torch::kInt32);
    process.world().all_reduce(failures);
    if (failures.item<int>() > 0) throw verify_error("tests", fmt::format("failed on {} of {} ranks", failures.item<int>(), process.world_size()));
    if (!reporter->skips.empty()) {
      const std::string first = *reporter->skips.begin();
      throw Skip(first.substr(0, first.find(':')), first);
    }
  });
}
