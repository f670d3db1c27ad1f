// The NCCL communicator against a stand-in for NCCL and CUDA that writes down what it is asked: the order of calls, the error paths,
// the abort. Tensors are on the CPU; no byte moves.
#include <gtest/gtest.h>

#include "comm/nccl_communicator.hpp"
#include "comm/tests/rank_main.hpp"

namespace manyranks {
namespace {

class FakeNccl : public NcclApi {
 public:
  std::atomic<bool> events_reached{true};
  std::atomic<State> current{State::good};
  int library = 23007;

  std::vector<std::string> log() {
    std::lock_guard lock(mutex_);
    return log_;
  }
  std::string joined() {
    std::string text;
    for (const auto& line : log()) text += line + " ";
    return text;
  }
  void forget() {
    std::lock_guard lock(mutex_);
    log_.clear();
  }

  int header_version() override { return 23007; }
  int library_version() override { return library; }
  UniqueId unique_id() override { return {}; }
  Comm init(int, const UniqueId&, int) override { return this; }
  Comm split(Comm, int color, int) override { note("split"); return color < 0 ? nullptr : this; }
  State state(Comm) override { return current; }
  std::string last_error(Comm) override { return "unhandled cuda error"; }
  void finalize(Comm) override { note("finalize"); }
  void destroy(Comm) override { note("destroy"); }
  void abort(Comm) override { note("abort"); }
  void group_start() override { note("group_start"); }
  void group_end() override { note("group_end"); }
  void all_reduce(const void*, void*, size_t n, Dtype dtype, ReduceOp op, Comm, Stream s) override { note(fmt::format("all_reduce:{}:{}:{}:{}", n, name_of(dtype), name_of(op), name(s))); }
  void reduce_scatter(const void*, void*, size_t n, Dtype, ReduceOp, Comm, Stream) override { note(fmt::format("reduce_scatter:{}", n)); }
  void reduce(const void*, void*, size_t n, Dtype, ReduceOp, int root, Comm, Stream) override { note(fmt::format("reduce:{}:{}", n, root)); }
  void all_gather(const void*, void*, size_t n, Dtype, Comm, Stream) override { note(fmt::format("all_gather:{}", n)); }
  void broadcast(const void*, void*, size_t n, Dtype, int root, Comm, Stream) override { note(fmt::format("broadcast:{}:{}", n, root)); }
  void send(const void*, size_t n, Dtype, int to, Comm, Stream) override { note(fmt::format("send:{}:{}", n, to)); }
  void recv(void*, size_t n, Dtype, int from, Comm, Stream) override { note(fmt::format("recv:{}:{}", n, from)); }
  void* allocate(size_t bytes) override { note("allocate"); return std::malloc(bytes); }
  void release(void* memory) override { note("release"); std::free(memory); }
  Stream make_stream() override { return &nccl_stream_; }
  void destroy_stream(Stream) override {}
  Stream compute_stream() override { return &compute_stream_; }
  void copy(void*, const void*, size_t bytes, Stream) override { note(fmt::format("copy:{}", bytes)); }
  Event make_event() override { return new int; }
  void destroy_event(Event event) override { delete static_cast<int*>(event); }
  void record(Event, Stream s) override { note("record:" + name(s)); }
  void make_wait(Stream s, Event) override { note("wait:" + name(s)); }
  bool reached(Event) override { return events_reached; }

 private:
  std::string name(Stream s) const { return s == &nccl_stream_ ? "nccl" : "compute"; }
  void note(std::string line) {
    std::lock_guard lock(mutex_);
    log_.push_back(std::move(line));
  }
  std::mutex mutex_;
  std::vector<std::string> log_;
  int nccl_stream_ = 0, compute_stream_ = 0;
};

// A world of four in which only this rank exists.
struct Nccl : testing::Test {
  std::shared_ptr<FakeNccl> api = std::make_shared<FakeNccl>();
  std::shared_ptr<Fabric> fabric = std::make_shared<Fabric>();
  std::atomic<int> ended{0};
  std::unique_ptr<Communicator> make(double timeout_s = 30) {
    fabric->timeout_s = timeout_s;
    fabric->host_of = {0, 1, 2, 3};
    fabric->world_rank = 1;
    fabric->peers = std::make_shared<HostPeers>(0, std::vector<int>{0}, [](const std::string& mine) { return std::vector<std::string>{mine}; });
    return std::make_unique<NcclCommunicator>(api, api.get(), fabric, std::vector<int>{0, 1, 2, 3}, 1, torch::kCPU, "world", "test", [this](const Error& error) { ended = static_cast<int>(error.code); });
  }
};

TEST_F(Nccl, OrdersTheTwoStreamsAroundACall) {
  auto nccl = make();
  nccl->all_reduce(torch::ones(10));
  EXPECT_EQ(api->joined(), "record:compute wait:nccl all_reduce:10:float32:sum:nccl record:nccl wait:compute ");
  api->forget();
  auto work = nccl->all_reduce_async(torch::ones(10));
  EXPECT_EQ(api->joined(), "record:compute wait:nccl all_reduce:10:float32:sum:nccl record:nccl ") << "the compute stream waits only in wait()";
  work.wait();
  EXPECT_EQ(api->log().back(), "wait:compute");
}

TEST_F(Nccl, EveryOperationBecomesTheRightCalls) {
  auto nccl = make();
  const auto calls = [&](auto&& call) {
    api->forget();
    call();
    std::string text;
    for (const auto& line : api->log())
      if (line.rfind("record", 0) && line.rfind("wait", 0)) text += line + " ";
    return text;
  };
  auto one = torch::ones(2), four = torch::ones(8);
  EXPECT_EQ(calls([&] { nccl->all_gather(four, one); }), "all_gather:2 ");
  EXPECT_EQ(calls([&] { nccl->reduce_scatter(one, four); }), "reduce_scatter:2 ");
  EXPECT_EQ(calls([&] { nccl->broadcast(one, 2); }), "broadcast:2:2 ");
  EXPECT_EQ(calls([&] { nccl->reduce(torch::Tensor(), one, 3); }), "reduce:2:3 ");
  EXPECT_EQ(calls([&] { nccl->send(one, 3); }), "send:2:3 ");
  EXPECT_EQ(calls([&] { nccl->recv(one, 0); }), "recv:2:0 ");
  EXPECT_EQ(calls([&] { nccl->gather(torch::Tensor(), one, 0); }), "group_start send:2:0 group_end ");
  EXPECT_EQ(calls([&] { nccl->gather(four, one, 1); }), "copy:8 group_start recv:2:0 recv:2:2 recv:2:3 group_end ");
  EXPECT_EQ(calls([&] { nccl->scatter(one, four, 1); }), "copy:8 group_start send:2:0 send:2:2 send:2:3 group_end ");
  EXPECT_EQ(calls([&] { nccl->all_to_all(torch::ones(8), four); }), "copy:8 group_start send:2:0 recv:2:0 send:2:2 recv:2:2 send:2:3 recv:2:3 group_end ");
  EXPECT_EQ(calls([&] { nccl->all_reduce(torch::ones(3, torch::kBool)); }), "all_reduce:3:uint8:max:nccl ");
  EXPECT_EQ(calls([&] { nccl->all_reduce(torch::ones(0)); }), "") << "nothing to move";
  EXPECT_EQ(nccl->traffic().calls_by_operation.at("gather"), 2);
  EXPECT_THROW(nccl->all_reduce(torch::ones({4, 4}).t()), Error);
}

TEST_F(Nccl, ATimeoutAbortsOnceEndsTheJobAndBreaksTheCommunicator) {
  auto nccl = make(0.05);
  api->events_reached = false;
  auto work = nccl->all_reduce_async(torch::ones(10));
  while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ended, static_cast<int>(Exit::lost_peer));
  try {
    work.wait();
    ADD_FAILURE() << "did not throw";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("all_reduce(float32, 10, sum) #1 of 'world'"), std::string::npos) << error.what();
  }
  EXPECT_THROW(nccl->all_reduce(torch::ones(1)), Error);
  nccl.reset();
  const auto log = api->log();
  EXPECT_EQ(std::count(log.begin(), log.end(), "abort"), 1);
  EXPECT_EQ(std::count(log.begin(), log.end(), "destroy"), 0);
}

TEST_F(Nccl, AnAsynchronousErrorIsFoundByTheWatchdog) {
  auto nccl = make();
  api->events_reached = false;
  auto work = nccl->all_reduce_async(torch::ones(10));
  api->current = NcclApi::State::failed;
  while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  try {
    work.wait();
    ADD_FAILURE() << "did not throw";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("unhandled cuda error"), std::string::npos);
  }
}

TEST_F(Nccl, AnInitThatNeverEndsIsAborted) {
  api->current = NcclApi::State::in_progress;
  EXPECT_THROW(make(0.05), Error);
  EXPECT_EQ(api->log().back(), "abort");
}

TEST_F(Nccl, RefusesAnotherLibraryThanItWasBuiltWith) {
  check_nccl_version(*api);
  api->library = 22809;
  EXPECT_THROW(check_nccl_version(*api), Error);
}

TEST_F(Nccl, MemoryAndTheEnd) {
  auto nccl = make();
  {
    auto tensor = nccl->allocate({4, 4}, torch::kFloat32);
    EXPECT_EQ(tensor.numel(), 16);
  }
  EXPECT_EQ(api->joined(), "allocate release ");
  nccl->finish();
  EXPECT_EQ(api->log().back(), "finalize");
  nccl.reset();
  EXPECT_EQ(api->log().back(), "destroy");
}

}  // namespace
}  // namespace manyranks
