// A program that goes wrong on purpose: failures_test.py starts it and looks at how the job ends.
#include <signal.h>

#include <thread>

#include "comm/communicator.hpp"
#include "launch/process.hpp"

using namespace manyranks;

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("misbehave", "goes wrong on purpose");
    std::string scenario = "good";
    int victim = 1;
    options.add("--scenario", scenario, "what goes wrong");
    options.add("--victim", victim, "on which rank");
    process.start(options);
    Communicator& world = process.world();
    const bool me = process.rank() == victim;
    auto small = torch::ones(4), large = torch::ones(1 << 20);
    world.all_reduce(small);
    world.all_reduce(large);

    if (scenario == "stop_inside") {
      if (me) std::thread([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)), kill(getpid(), SIGSTOP); }).detach();
      for (int i = 0; i < 1'000'000; ++i) world.all_reduce(large, ReduceOp::max);
    } else if (scenario == "stop_between") {
      if (me) raise(SIGSTOP);
      world.all_reduce(large);
    } else if (scenario == "stop_split") {
      if (me) raise(SIGSTOP);
      world.split(0, 0)->barrier();
    } else if (scenario == "stop_recv") {
      if (me) raise(SIGSTOP);
      if (!me) world.recv(small, victim);
      else world.send(small, victim == 0 ? 1 : 0);
    } else if (scenario == "stop_async") {
      if (me) raise(SIGSTOP);
      auto work = world.all_reduce_async(large);
      work.wait();
    } else if (scenario == "linger") {
      std::this_thread::sleep_for(std::chrono::seconds(6));
    } else if (scenario == "kill") {
      if (me) raise(SIGKILL);
      std::this_thread::sleep_for(std::chrono::seconds(60));  // computes: only the watch can notice
    } else if (scenario == "throw") {
      if (me) throw data_error("reading", "a bad file");
      std::this_thread::sleep_for(std::chrono::seconds(60));
    } else if (scenario == "wrong_call") {
      if (me) world.broadcast(small, 0);
      else world.all_reduce(small);
    } else if (scenario == "wrong_count") {
      world.all_reduce(me ? torch::ones(5) : small);
    } else if (scenario == "wrong_dtype") {
      world.all_reduce(me ? torch::ones(4, torch::kInt32) : small);
    } else if (scenario == "wrong_size_class") {
      world.all_reduce(me ? large : small);
    } else if (scenario == "skipped_call") {
      if (!me) world.all_reduce(small);
      world.barrier();
    } else if (scenario == "swapped") {
      auto a = world.split(0, 0), b = world.split(0, 0);
      (me ? *b : *a).all_reduce(small);
      (me ? *a : *b).all_reduce(small);
    } else if (scenario == "wrong_message") {
      if (process.rank() == 0) world.send(small, 1);
      if (process.rank() == 1) world.recv(torch::ones(3), 0);
      world.barrier();
    }
    if (scenario == "stop_end" && me) raise(SIGSTOP);
  });
}
