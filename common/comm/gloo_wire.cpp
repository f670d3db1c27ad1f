#include "comm/gloo_wire.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "comm/gloo_module.h"
#include "launch/errors.hpp"

namespace manyranks {
namespace {

std::string module_path() {
  if (const char* path = std::getenv("MANYRANKS_GLOO_MODULE")) return path;
#ifdef MANYRANKS_GLOO_MODULE
  return MANYRANKS_GLOO_MODULE;
#else
  return "";
#endif
}

const GlooInterface* open_module(std::string& trouble) {
#ifdef MANYRANKS_SANITIZE
  trouble = "sanitizers do not allow RTLD_DEEPBIND, which keeps Gloo apart from the one inside LibTorch";
  return nullptr;
#endif
  if (module_path().empty()) {
    trouble = "this was built without Gloo (Debian: libgloo-dev)";
    return nullptr;
  }
  void* module = dlopen(module_path().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);  // never closed: Gloo's threads run in it
  void* symbol = module ? dlsym(module, "manyranks_gloo_interface") : nullptr;
  if (!symbol) {
    trouble = dlerror();
    return nullptr;
  }
  return reinterpret_cast<const GlooInterface* (*)()>(symbol)();
}

class GlooRequestOf : public Wire::Request {
 public:
  GlooRequestOf(const GlooInterface& gloo, GlooRequest* request) : gloo_(gloo), request_(request) {
    if (!request_) throw lost_peer_error("gloo", "the connection to a peer is broken");
  }
  ~GlooRequestOf() override {
    if (done_) gloo_.release(request_);  // otherwise the job is ending: its memory is still known to Gloo's thread
  }
  bool test() override {
    const int state = done_ ? 1 : gloo_.test(request_);
    if (state < 0) throw lost_peer_error("gloo", "the connection to a peer is broken");
    return done_ = state == 1;
  }
  bool wait(Clock::time_point deadline) override {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return done_ = done_ || gloo_.wait(request_, std::max<int64_t>(1, left)) == 1;
  }

 private:
  const GlooInterface& gloo_;
  GlooRequest* request_;
  bool done_ = false;
};

class GlooWire : public Wire {
 public:
  GlooWire(const GlooInterface& gloo, GlooLink* link) : gloo_(gloo), link_(link) {}
  ~GlooWire() override { gloo_.disconnect(link_); }
  std::string name() const override { return "Gloo (tcp)"; }

  std::unique_ptr<Request> send(int to, int channel, const void* data, size_t bytes) override {
    return std::make_unique<GlooRequestOf>(gloo_, gloo_.send(link_, to, slot(true, to, channel), data, bytes));
  }
  std::unique_ptr<Request> recv(int from, int channel, void* data, size_t bytes) override {
    return std::make_unique<GlooRequestOf>(gloo_, gloo_.recv(link_, from, slot(false, from, channel), data, bytes));
  }
  void all_reduce(float* data, size_t count) {
    if (gloo_.all_reduce_float(link_, data, count, next_tag_++) != 0) throw lost_peer_error("gloo allreduce", "the connection to a peer is broken");
  }

 private:
  // A slot per message, counted on both sides alike, keeps the order whatever Gloo does with equal slots.
  uint64_t slot(bool sending, int peer, int channel) {
    std::lock_guard lock(mutex_);
    return static_cast<uint64_t>(channel) << 32 | (counts_[{sending, peer, channel}]++ & 0xffffffff);
  }
  const GlooInterface& gloo_;
  GlooLink* link_;
  uint32_t next_tag_ = 0;
  std::mutex mutex_;
  std::map<std::tuple<bool, int, int>, uint64_t> counts_;
};

void gather_for_gloo(void* context, const char* mine, size_t bytes, GlooDeliver deliver, void* receiver) {
  const auto all = (*static_cast<const AllGather*>(context))(std::string(mine, bytes));
  for (size_t rank = 0; rank < all.size(); ++rank) deliver(receiver, static_cast<int>(rank), all[rank].data(), all[rank].size());
}

}  // namespace

std::string address_towards(const std::string& target) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (target.empty() || getaddrinfo(target.c_str(), "9", &hints, &found) != 0) return "127.0.0.1";
  char text[INET6_ADDRSTRLEN] = "127.0.0.1";
  const int file = socket(found->ai_family, SOCK_DGRAM, 0);
  sockaddr_storage mine{};
  socklen_t length = sizeof mine;
  // Connecting a datagram socket sends nothing: it only asks the routing table.
  if (file >= 0 && connect(file, found->ai_addr, found->ai_addrlen) == 0 && getsockname(file, reinterpret_cast<sockaddr*>(&mine), &length) == 0)
    getnameinfo(reinterpret_cast<sockaddr*>(&mine), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  if (file >= 0) close(file);
  freeaddrinfo(found);
  return text;
}

std::string address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw unavailable_error("MANYRANKS_INTERFACE", "getifaddrs failed");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::set<std::string> names;
  std::string found;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    const int family = entry->ifa_addr ? entry->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    names.insert(entry->ifa_name);
    char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 1] = "";
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (name != entry->ifa_name || (!found.empty() && family != AF_INET)) continue;  // IPv4 if there is one
    if (getnameinfo(entry->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) found = text;
    if (family == AF_INET) break;
  }
  if (found.empty())
    throw usage_error("MANYRANKS_INTERFACE", fmt::format("there is no interface '{}' with an address here, only: {}",
                                                         name, fmt::join(names, " ")));
  return found;
}

std::string reachable_address(const std::string& mine, const std::vector<std::string>& all, const std::function<std::string(const std::string&)>& towards) {
  const auto loopback = [](const std::string& address) { return address.rfind("127.", 0) == 0 || address == "::1"; };
  if (loopback(mine))
    for (const auto& other : all)
      if (!loopback(other)) return towards(other);
  return mine;
}

namespace {

// Everybody looks before anybody leaves: a wrong name on one host is an error on all.
std::string published_address(const std::string& master, const AllGather& all_gather) {
  const char* interface = std::getenv("MANYRANKS_INTERFACE");
  const bool given = interface && *interface;
  std::string mine;
  try {
    mine = given ? address_of_interface(interface) : address_towards(master);
  } catch (const Error& error) {
    mine = "!" + error.cause;
  }
  const auto all = all_gather(mine);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].rfind('!', 0) == 0) throw usage_error("MANYRANKS_INTERFACE", fmt::format("on rank {} {}", rank, all[rank].substr(1)), "ip -brief address");
  return given ? mine : reachable_address(mine, all, address_towards);
}

}  // namespace

void gloo_all_reduce(Wire& wire, float* data, size_t count) { dynamic_cast<GlooWire&>(wire).all_reduce(data, count); }

std::string gloo_missing() {
  std::string trouble;
  open_module(trouble);
  return trouble;
}

std::shared_ptr<Wire> make_gloo_wire(int rank, int size, const std::string& master, double timeout_s, const AllGather& all_gather) {
  std::string trouble;
  const GlooInterface* gloo = open_module(trouble);
  if (!gloo) throw unavailable_error("--backend gloo", trouble, "install libgloo-dev and build again, or --backend mpi");
  const std::string address = published_address(master, all_gather);
  char error[512] = "";
  GlooLink* link = gloo->connect(rank, size, address.c_str(), static_cast<int64_t>(timeout_s * 1000), gather_for_gloo,
                                 const_cast<AllGather*>(&all_gather), error, sizeof error);
  if (!link) throw lost_peer_error("connecting by gloo", error, "check that ranks can reach each other by TCP");
  return std::make_shared<GlooWire>(*gloo, link);
}

}  // namespace manyranks
