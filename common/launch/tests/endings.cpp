// A program that ends in unusual ways: endings_test.py starts it and looks at exit codes, texts and open ports.
#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <thread>

#include "comm/communicator.hpp"
#include "launch/process.hpp"

using namespace manyranks;

namespace {

// As in a sandbox, or with a kernel from before 5.3: pidfd_open fails.
void forbid_pidfd_open(uint32_t error) {
  sock_filter code[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_pidfd_open},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | error},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program{4, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    throw Skip("seccomp", "a process may not limit its own system calls here");
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("endings", "ends in unusual ways");
    std::string scenario = "good";
    int victim = 1;
    options.add("--scenario", scenario, "how to end");
    options.add("--victim", victim, "which rank does; -1: all");
    process.start(options);
    const bool me = victim < 0 || process.rank() == victim;
    const auto nap = [](int seconds) { std::this_thread::sleep_for(std::chrono::seconds(seconds)); };

    if (scenario == "skip_before" && me) throw Skip("gpu", "for the test, before the ranks have met");
    if (scenario == "no_pidfd") forbid_pidfd_open(ENOSYS);
    if (scenario == "no_files") forbid_pidfd_open(EMFILE);
    Communicator& world = process.world();
    auto small = torch::ones(4);
    world.all_reduce(small);
    if (scenario == "skip_alone" && me) throw Skip("gpu", "for the test, on one rank only");
    if (scenario == "skip_alone") world.all_reduce(small);
    if (scenario == "skip_computing" && me) throw Skip("gpu", "for the test, while others compute");
    if (scenario == "skip_computing") nap(60);
    if (scenario == "odd") throw 42;
    if (scenario == "linger") {
      if (process.is_root()) fmt::print("lingering\n"), std::fflush(stdout);
      nap(3);
    }
  });
}
