#include "comm/host_peers.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "launch/errors.hpp"

namespace manyranks {

struct alignas(128) HostPeers::Record {
  std::atomic<int> process{0};
  std::atomic<bool> finished{false};
  std::atomic<bool> inside{false};  // a call
  std::atomic<uint64_t> sequence{0}, kind{0}, count{0};
  std::atomic<char> group[48] = {};
  std::atomic<char> words[96] = {};  // announce()
};

struct alignas(128) HostPeers::Board {
  std::atomic<int> failure{0};  // code + 256 * (world rank + 1)
  std::atomic<uint32_t> allocations{0};
};

namespace {

// Text in shared memory, letter by letter: who reads it while it changes sees a mixture, which an error line can bear.
template <size_t size>
void write_text(std::atomic<char> (&to)[size], std::string_view text) {
  for (size_t i = 0; i < size; ++i) {
    const char letter = i < text.size() && i + 1 < size ? text[i] : '\0';
    to[i].store(letter, std::memory_order_relaxed);
    if (!letter) break;
  }
}

template <size_t size>
std::string read_text(const std::atomic<char> (&from)[size]) {
  std::string text;
  for (const auto& letter : from) {
    if (!letter) break;
    text += letter;
  }
  return text;
}

// A file that becomes readable when the process dies. -1, said aloud once per host, where the kernel or a sandbox has
// no such files: then only the time limit notices a dead rank.
int open_death_file(int process, int rank, bool speak) {
  const int file = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  if (file >= 0) return file;
  const int cause = errno;
  if (cause == ESRCH)
    throw lost_peer_error("watching peers", fmt::format("rank {} (pid {}) died before all had met", rank, process),
                          "look at its last lines");
  if (cause == EMFILE || cause == ENFILE)
    throw unavailable_error("watching peers", fmt::format("pidfd_open for rank {}: {}", rank, std::strerror(cause)),
                            "a larger ulimit -n, or fewer ranks");
  if (speak)
    fmt::print(stderr,
               "manyranks: warning: the death of rank {} cannot be watched (pidfd_open: {}): only --timeout-s will "
               "notice it\n",
               rank, std::strerror(cause));
  return -1;
}

}  // namespace

HostPeers::Board& HostPeers::board() const { return *reinterpret_cast<Board*>(segment_->data()); }
HostPeers::Record& HostPeers::record(int index) const { return *reinterpret_cast<Record*>(segment_->data() + sizeof(Board) + index * sizeof(Record)); }

HostPeers::HostPeers(int index, std::vector<int> world_ranks, const AllGather& world_all_gather)
    : index_(index), ranks_(std::move(world_ranks)), pidfds_(ranks_.size(), -1) {
  // Zeroed memory is a valid initial state of every atomic in it: nobody has to come first to construct it.
  segment_ = share_segment(sizeof(Board) + ranks_.size() * sizeof(Record), "the ranks of this host", index_ == 0, ranks_[0], world_all_gather);
  record(index_).process = getpid();
  world_all_gather("");
  for (int peer = 0; peer < size(); ++peer) {
    const int process = record(peer).process;
    if (process != getpid()) pidfds_[peer] = open_death_file(process, ranks_[peer], index_ == 0);
  }
}

HostPeers::~HostPeers() {
  for (const int file : pidfds_)
    if (file >= 0) close(file);
}

int HostPeers::index_of(int world_rank) const {
  for (int i = 0; i < size(); ++i)
    if (ranks_[i] == world_rank) return i;
  return -1;
}

void HostPeers::begin_call(const std::string& group, uint64_t sequence, const Call& call) {
  Record& mine = record(index_);
  constexpr auto relaxed = std::memory_order_relaxed;
  mine.inside.store(true, relaxed);
  mine.sequence.store(sequence, relaxed);
  mine.kind.store(call.kind(), relaxed);
  mine.count.store(call.count, relaxed);
  write_text(mine.group, group);
}

void HostPeers::end_call() { record(index_).inside.store(false, std::memory_order_relaxed); }
void HostPeers::announce(std::string_view what) { write_text(record(index_).words, what); }

std::string HostPeers::doing(int index) const {
  const Record& peer = record(index);
  const std::string words = read_text(peer.words);
  const std::string who = fmt::format("rank {} (pid {}){}", ranks_[index], peer.process.load(), words.empty() ? "" : " [" + words + "]");
  const Call call = Call::from(peer.kind, peer.count);
  if (call.operation == Operation::none) return who + " has made no call yet";
  return fmt::format("{} {} {} as call #{} of '{}'", who, peer.inside ? "is in" : "is between calls, its last was", call.text(), peer.sequence.load(), read_text(peer.group));
}

uint32_t HostPeers::next_allocation_id() { return board().allocations.fetch_add(1) + 1; }

std::shared_ptr<Allocation> HostPeers::add_allocation(std::shared_ptr<Segment> segment, size_t bytes, const std::vector<int>& members, uint32_t id) {
  auto allocation = std::make_shared<Allocation>();
  allocation->id = id;
  allocation->bytes = bytes;
  allocation->parts.assign(size(), nullptr);
  for (size_t i = 0; i < members.size(); ++i) allocation->parts[members[i]] = segment->data() + i * bytes;
  allocation->segment = std::move(segment);
  std::lock_guard lock(mutex_);
  std::erase_if(by_address_, [](const auto& entry) { return entry.second.expired(); });
  std::erase_if(by_id_, [](const auto& entry) { return entry.second.expired(); });
  by_address_[allocation->parts[index_]] = allocation;
  by_id_[id] = allocation;
  return allocation;
}

uint64_t HostPeers::place_of(const void* address, size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto* at = static_cast<const std::byte*>(address);
  auto next = by_address_.upper_bound(at);
  if (next == by_address_.begin()) return 0;
  const auto allocation = std::prev(next)->second.lock();
  if (!allocation) return 0;
  const size_t offset = at - allocation->parts[index_];
  if (offset + bytes > allocation->bytes) return 0;
  return static_cast<uint64_t>(allocation->id) << place_offset_bits | offset;
}

std::byte* HostPeers::at(uint64_t place, int index) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(static_cast<uint32_t>(place >> place_offset_bits));
  if (found == by_id_.end()) return nullptr;
  const auto allocation = found->second.lock();
  if (!allocation || !allocation->parts[index]) return nullptr;
  return allocation->parts[index] + (place & ((uint64_t{1} << place_offset_bits) - 1));
}

void HostPeers::set_finished() { record(index_).finished = true; }
bool HostPeers::finished(int index) const { return record(index).finished; }

bool HostPeers::claim_failure(int code) {
  int none = 0;
  return board().failure.compare_exchange_strong(none, code + 256 * (ranks_[index_] + 1));
}
int HostPeers::failure() const { return board().failure % 256; }
int HostPeers::failed_rank() const { return board().failure / 256 - 1; }

void HostPeers::end_others(double grace_s) noexcept {
  const auto start = std::chrono::steady_clock::now();
  const auto alive = [&](int peer) {
    pollfd death{pidfds_[peer], POLLIN, 0};
    return pidfds_[peer] >= 0 && poll(&death, 1, 0) == 0;
  };
  for (int peer = 0; peer < size(); ++peer) {
    while (alive(peer) && std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < grace_s)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    // A stopped process cannot end by itself.
    if (alive(peer)) syscall(SYS_pidfd_send_signal, pidfds_[peer], SIGKILL, nullptr, 0);
  }
}

}  // namespace manyranks
