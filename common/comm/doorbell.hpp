// How a rank waits for another: look a little, let others run a little, then sleep in the kernel until it is rung.
// An oversubscribed core is never burnt, and nobody pays for a wake-up that nobody needs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace manyranks {

using Clock = std::chrono::steady_clock;

// Lives in shared memory. Many may ring it; usually one thread sleeps on it.
struct alignas(64) Doorbell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};

  // The caller's change must be a seq_cst store made before: either it sees the sleeper, or the sleeper sees the change.
  void ring() {
    if (sleepers.load(std::memory_order_seq_cst) != 0) ring_always();
  }
  void ring_always();
  // Sleeps until rung after `seen` was read, at most `most` long.
  void sleep(uint32_t seen, std::chrono::milliseconds most);
};

// How long to look before sleeping. With more ranks than cores, looking takes the core from the one we wait for.
struct Patience {
  int spins = 1000;
  int yields = 20;
  static Patience for_ranks(int ranks_on_host);
};

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

void yield_core();

// Returns true when `ready()` is; false at the deadline. `ready` must read with seq_cst.
template <class Ready>
bool wait_until(Doorbell& mine, const Patience& patience, Clock::time_point deadline, Ready&& ready) {
  for (int i = 0; i < patience.spins; ++i) {
    if (ready()) return true;
    cpu_pause();
  }
  for (int i = 0; i < patience.yields; ++i) {
    if (ready()) return true;
    yield_core();
  }
  for (;;) {
    const uint32_t seen = mine.rings.load(std::memory_order_seq_cst);
    mine.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const bool now = ready();
    if (!now) mine.sleep(seen, std::chrono::milliseconds(50));
    mine.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (now || ready()) return true;
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace manyranks
