#include "launch/rendezvous.hpp"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include "launch/torch.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "launch/mpi_check.hpp"

namespace manyranks {
namespace {

using Clock = std::chrono::steady_clock;

class Alone : public Rendezvous {
 public:
  std::vector<std::string> all_gather(const std::string& mine) override { return {mine}; }
  void end_job(int) noexcept override {}
};

class ByMpi : public Rendezvous {
 public:
  explicit ByMpi(double timeout_s) : timeout_s_(timeout_s) {}

  std::vector<std::string> all_gather(const std::string& mine) override {
    int size = 0;
    CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
    int length = static_cast<int>(mine.size());
    std::vector<int> lengths(size), offsets(size);
    MPI_Request request;
    CHECK_MPI(MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD, &request));
    wait(request);
    int total = 0;
    for (int r = 0; r < size; ++r) offsets[r] = total, total += lengths[r];
    std::string all(total, '\0');
    CHECK_MPI(MPI_Iallgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, MPI_COMM_WORLD, &request));
    wait(request);
    std::vector<std::string> parts(size);
    for (int r = 0; r < size; ++r) parts[r] = all.substr(offsets[r], lengths[r]);
    return parts;
  }

  void end_job(int code) noexcept override { MPI_Abort(MPI_COMM_WORLD, code); }

 private:
  // Polls instead of MPI_Wait: MPI_Wait has no time limit, and spins.
  void wait(MPI_Request& request) {
    const auto start = Clock::now();
    for (int done = 0;;) {
      CHECK_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done) return;
      if (std::chrono::duration<double>(Clock::now() - start).count() > timeout_s_)
        throw lost_peer_error("rendezvous", fmt::format("some rank did not come within {:g} s", timeout_s_), "a larger --timeout-s, or look for a stopped rank");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  double timeout_s_;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

bool is_loopback(const addrinfo& address) {
  if (address.ai_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr);
}

// TCPStore listens on every interface unless it is given a socket: one bound to MASTER_ADDR only is out of reach for
// the rest of the network. Nothing, where that address cannot be bound (a service's, a router's), or where a host's own
// name stands for loopback (127.0.1.1 in /etc/hosts), though other hosts know it by another address: then every
// interface, as TCPStore does it.
std::optional<int> listen_at(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  bool numeric = getaddrinfo(host.c_str(), service.c_str(), &hints, &found) == 0;
  hints.ai_flags = 0;
  if (!numeric && getaddrinfo(host.c_str(), service.c_str(), &hints, &found) != 0) return std::nullopt;
  const Addresses addresses(found, freeaddrinfo);
  for (const int family : {AF_INET, AF_INET6})  // clients try both, IPv4 is what every host has
    for (const addrinfo* address = found; address; address = address->ai_next) {
      if (address->ai_family != family || (!numeric && host != "localhost" && is_loopback(*address))) continue;
      const int file = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (file < 0) continue;
      const int yes = 1;
      setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      if (bind(file, address->ai_addr, address->ai_addrlen) == 0 && listen(file, SOMAXCONN) == 0) return file;
      const int cause = errno;
      close(file);
      if (cause == EADDRINUSE)
        throw unavailable_error("rendezvous", fmt::format("port {}:{} is in use by another program", host, port),
                                "another MASTER_PORT, the same on every rank");
    }
  return std::nullopt;
}

class ByStore : public Rendezvous {
 public:
  ByStore(const Identity& id, double timeout_s) : rank_(id.rank), size_(id.world_size), timeout_s_(timeout_s) {
    // torchrun keeps a store on the master's port itself, and marks each restart.
    const bool agent_store = environment_variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
    prefix_ = "manyranks/" + environment_variable("TORCHELASTIC_RESTART_COUNT").value_or("0") + "/";
    const std::string where = fmt::format("{}:{}", id.master_address, id.master_port);
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(id.master_port);
    options.isServer = rank_ == 0 && !agent_store;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
    if (options.isServer) options.masterListenFd = listen_at(id.master_address, id.master_port);
    try {
      store_ = c10::make_intrusive<c10d::TCPStore>(id.master_address, options);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      if (options.isServer && text.find("address already in use") != std::string::npos)
        throw unavailable_error("rendezvous", "port " + where + " is in use by another program", "another MASTER_PORT, the same on every rank");
      throw lost_peer_error("rendezvous", fmt::format("cannot reach rank 0 at {} within {:g} s ({})", where, timeout_s, first_line(text)),
                            "check MASTER_ADDR and MASTER_PORT, the firewall, and that rank 0 runs");
    }
    if (store_->add(prefix_ + "claim/" + std::to_string(rank_), 1) != 1)
      throw usage_error("rendezvous", fmt::format("another process already is rank {} of {}", rank_, where),
                        "give each process its own RANK, or another MASTER_PORT if a job is still running");
  }

  ~ByStore() override {
    // The store lives in rank 0: it must be the last to leave, or a peer's last request fails.
    try {
      store_->add(prefix_ + "left", 1);
      wait_as_root(2.0, [&] { return store_->add(prefix_ + "left", 0) >= size_; });
    } catch (const std::exception&) {
      // The store is gone because rank 0 is: nothing is left to tell anybody.
    }
  }

  std::vector<std::string> all_gather(const std::string& mine) override {
    const std::string round = prefix_ + "round" + std::to_string(round_++) + "/";
    store_->set(round + std::to_string(rank_), bytes(mine));
    std::vector<std::string> all(size_);
    const auto start = Clock::now();
    for (int r = 0; r < size_; ++r)
      while (!take(round + std::to_string(r), all[r],
                   timeout_s_ - std::chrono::duration<double>(Clock::now() - start).count())) {
        // Who ended the job instead of coming has said why: its exit code is everybody's.
        if (const int code = store_lives() ? ended_by_peer() : 0)
          throw Error(static_cast<Exit>(code), "rendezvous", "another rank ended the job",
                      "look at the other ranks' lines");
        if (std::chrono::duration<double>(Clock::now() - start).count() >= timeout_s_ || !store_lives())
          throw lost_peer_error("rendezvous", fmt::format("{} did not come within {:g} s", missing(round), timeout_s_),
                                "start every rank from 0 to WORLD_SIZE-1, or a larger --timeout-s");
      }
    return all;
  }

  // Only set(), which waits for no answer: rank 0 may be stopped, and then must still be ended by whoever noticed.
  void end_job(int code) noexcept override {
    try {
      store_->set(prefix_ + "ended", bytes(std::to_string(code)));
      store_->set(prefix_ + "gone/" + std::to_string(rank_), bytes("1"));
      std::vector<std::string> gone;
      for (int r = 0; r < size_; ++r) gone.push_back(prefix_ + "gone/" + std::to_string(r));
      wait_as_root(1.0, [&] { return store_->check(gone); });  // who asks the store meanwhile learns the exit code
    } catch (const std::exception&) {
      // No store, nobody to tell; the peers' own timeouts end them.
    }
  }

  int ended_by_peer() noexcept override {
    try {
      if (!store_->check({prefix_ + "ended"})) return 0;
      const auto value = store_->get(prefix_ + "ended");
      return std::stoi(std::string(value.begin(), value.end()));
    } catch (const std::exception&) {
      return static_cast<int>(Exit::lost_peer);  // rank 0, and with it the store, is gone
    }
  }

 private:
  static std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  // Waits a second at most, so that the end of the job is noticed. False: not there yet.
  bool take(const std::string& key, std::string& text, double left_s) {
    try {
      store_->wait({key}, std::chrono::milliseconds(static_cast<int64_t>(1000 * std::clamp(left_s, 0.001, 1.0))));
      const auto value = store_->get(key);
      text.assign(value.begin(), value.end());
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  template <class Done>
  void wait_as_root(double limit_s, Done done) {
    const auto start = Clock::now();
    while (rank_ == 0 && !done() && std::chrono::duration<double>(Clock::now() - start).count() < limit_s)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  bool store_lives() {
    try {
      store_->check({prefix_ + "ended"});
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  std::string missing(const std::string& round) {
    std::string names;
    for (int r = 0; r < size_; ++r) {
      try {
        if (store_->check({round + std::to_string(r)})) continue;
      } catch (const std::exception&) {
        return "rank 0, which holds the store,";
      }
      names += (names.empty() ? "rank " : ", ") + std::to_string(r);
    }
    return names.empty() ? "a rank" : names;
  }

  int rank_, size_;
  double timeout_s_;
  std::string prefix_;
  int round_ = 0;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::unique_ptr<Rendezvous> rendezvous_alone() { return std::make_unique<Alone>(); }
std::unique_ptr<Rendezvous> rendezvous_by_mpi(double timeout_s) { return std::make_unique<ByMpi>(timeout_s); }
std::unique_ptr<Rendezvous> rendezvous_by_store(const Identity& identity, double timeout_s) {
  return std::make_unique<ByStore>(identity, timeout_s);
}

}  // namespace manyranks
