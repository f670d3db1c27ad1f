#include "comm/gloo_module.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <cstdio>
#include <thread>

struct GlooLink {
  std::shared_ptr<gloo::rendezvous::Context> context;
  std::shared_ptr<gloo::transport::Device> device;
  std::chrono::milliseconds timeout;
};

struct GlooRequest {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  bool sending = false;
  std::chrono::milliseconds timeout;
  std::atomic<int> state{0};
  std::thread waiter;  // Gloo has no test: a request that is polled gets a thread that sleeps in its wait
};

namespace {

// Gloo writes once and then reads everybody's: one all_gather does it.
class OneRound : public gloo::rendezvous::Store {
 public:
  OneRound(int size, GlooAllGather all_gather, void* context) : values_(size), all_gather_(all_gather), context_(context) {}
  void set(const std::string&, const std::vector<char>& data) override {
    all_gather_(context_, data.data(), data.size(), [](void* self, int rank, const char* value, size_t bytes) { static_cast<OneRound*>(self)->values_[rank].assign(value, value + bytes); }, this);
  }
  std::vector<char> get(const std::string& key) override { return values_.at(std::stoi(key)); }
  void wait(const std::vector<std::string>&) override {}

 private:
  std::vector<std::vector<char>> values_;
  GlooAllGather all_gather_;
  void* context_;
};

bool finish(GlooRequest& request, std::chrono::milliseconds timeout) {
  try {
    return request.sending ? request.buffer->waitSend(timeout) : request.buffer->waitRecv(timeout);
  } catch (const std::exception&) {
    return false;
  }
}

GlooLink* connect(int rank, int size, const char* address, int64_t timeout_ms, GlooAllGather all_gather, void* context, char* error, size_t error_bytes) {
  try {
    auto link = std::make_unique<GlooLink>();
    link->timeout = std::chrono::milliseconds(timeout_ms);
    link->device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address));
    link->context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    link->context->setTimeout(link->timeout);
    OneRound store(size, all_gather, context);
    link->context->connectFullMesh(store, link->device);
    return link.release();
  } catch (const std::exception& trouble) {
    std::snprintf(error, error_bytes, "%s", trouble.what());
    return nullptr;
  }
}

GlooRequest* start(GlooLink* link, bool sending, int peer, uint64_t slot, void* data, size_t bytes) {
  try {
    auto request = std::make_unique<GlooRequest>();
    request->buffer = link->context->createUnboundBuffer(data, bytes);
    request->sending = sending;
    request->timeout = link->timeout;
    if (sending) request->buffer->send(peer, slot);
    else request->buffer->recv(peer, slot);
    return request.release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

GlooRequest* send(GlooLink* link, int to, uint64_t slot, const void* data, size_t bytes) { return start(link, true, to, slot, const_cast<void*>(data), bytes); }
GlooRequest* recv(GlooLink* link, int from, uint64_t slot, void* data, size_t bytes) { return start(link, false, from, slot, data, bytes); }

int wait(GlooRequest* request, int64_t timeout_ms) {
  if (request->waiter.joinable()) {
    request->waiter.join();
    return request->state == 1;
  }
  if (request->state == 0) request->state = finish(*request, std::chrono::milliseconds(timeout_ms)) ? 1 : -1;
  return request->state == 1;
}

int test(GlooRequest* request) {
  // A receive may be posted long before its message is sent: no time limit here, who waits has one.
  if (request->state == 0 && !request->waiter.joinable())
    request->waiter = std::thread([request] { request->state = finish(*request, std::chrono::hours(24 * 365)) ? 1 : -1; });
  return request->state;
}

void release(GlooRequest* request) {
  if (request->waiter.joinable()) {
    if (request->state == 0) {
      if (request->sending) request->buffer->abortWaitSend();
      else request->buffer->abortWaitRecv();
    }
    request->waiter.join();
  }
  delete request;
}

int all_reduce_float(GlooLink* link, float* data, size_t count, uint32_t tag) {
  try {
    gloo::AllreduceOptions options(link->context);
    options.setOutput(data, count);
    options.setTag(tag);
    options.setReduceFunction([](void* c, const void* a, const void* b, size_t n) { gloo::sum<float>(c, a, b, n); });
    gloo::allreduce(options);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace

extern "C" const GlooInterface* manyranks_gloo_interface(void) {
  static const GlooInterface interface = {connect, [](GlooLink* link) { delete link; }, send, recv, wait, test, release, all_reduce_float};
  return &interface;
}
