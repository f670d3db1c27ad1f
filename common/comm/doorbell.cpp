#include "comm/doorbell.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <thread>

namespace manyranks {

// Not the private kind of futex: the sleeper is in another process.
void Doorbell::ring_always() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Doorbell::sleep(uint32_t seen, std::chrono::milliseconds most) {
  const timespec limit{most.count() / 1000, (most.count() % 1000) * 1'000'000};
  syscall(SYS_futex, &rings, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void yield_core() { sched_yield(); }

Patience Patience::for_ranks(int ranks_on_host) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  // A core each: yielding would only hand it to strangers, and a short step's ranks are some 100 us apart: less than it takes to fall
  // asleep and be woken on a virtual machine (mlp of chapter 03: 0.91 of two runs without communication, 0.80 with 2000 spins).
  // More ranks than cores: the one we wait for may need this core.
  return ranks_on_host <= cores ? Patience{6000, 0} : Patience{50, 50};
}

}  // namespace manyranks
