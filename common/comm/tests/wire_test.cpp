// What lies between hosts, on two ranks of one: messages larger than a library takes at once, and the address that is published.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/gloo_wire.hpp"
#include "comm/mpi_wire.hpp"
#include "comm/segment.hpp"  // available_memory
#include "comm/tests/rank_main.hpp"

namespace manyranks {
namespace {

using test::world;

TEST(MpiWire, AMessageInManyPiecesKeepsItsOrder) {
  if (!test::process().has_mpi()) GTEST_SKIP() << "mpi: started without MPI";
  auto wire = make_mpi_wire(60);
  wire->largest_piece = 1000;
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{999}, size_t{1000}, size_t{1001}, size_t{10'000}, size_t{123'456}}) {
    const int rank = world().rank(), size = world().size(), next = (rank + 1) % size, previous = (rank + size - 1) % size;
    const auto letter = [&](int from, int number, size_t i) { return static_cast<uint8_t>(i * 31 + from * 7 + number * 3 + i / 1000); };
    std::vector<uint8_t> out[2] = {std::vector<uint8_t>(bytes), std::vector<uint8_t>(bytes)}, in[2] = {out[0], out[1]};
    std::vector<std::unique_ptr<Wire::Request>> requests;
    for (int number = 0; number < 2; ++number) {  // two under way at once
      for (size_t i = 0; i < bytes; ++i) out[number][i] = letter(rank, number, i);
      requests.push_back(wire->recv(previous, 3, in[number].data(), bytes));
      requests.push_back(wire->send(next, 3, out[number].data(), bytes));
    }
    for (auto& request : requests) ASSERT_TRUE(request->wait(deadline));
    for (int number = 0; number < 2; ++number)
      for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(in[number][i], letter(previous, number, i)) << "byte " << i << " of " << bytes;
  }
}

// The sender's 4 GiB are one memory of 63 MiB mapped again and again, so that only the receiver's are real. 63 divides no power of two:
// a piece that is lost, or comes to another's place, shows.
TEST(Large, FourGibibytesAndEightBytesArrive) {
  if (world().size() < 2 || world().transport() == "shared memory") GTEST_SKIP() << "multinode: no wire between these ranks";
  if (available_memory() < size_t{7} << 30) GTEST_SKIP() << "memory: 7 GiB are needed";
  constexpr int64_t total = (int64_t{4} << 30) + 8, period = int64_t{63} << 20;
  auto pattern = (torch::arange(period / 8, torch::kInt64) * 2654435761).view(torch::kUInt8);
  if (world().rank() == 0) {
    const int64_t mapped = (total + period - 1) / period * period;
    const int file = memfd_create("large", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file, period), 0);
    auto* memory = static_cast<uint8_t*>(mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    ASSERT_NE(memory, MAP_FAILED);
    for (int64_t at = 0; at < mapped; at += period)
      ASSERT_NE(mmap(memory + at, period, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), MAP_FAILED);
    std::memcpy(memory, pattern.data_ptr(), period);
    world().send(torch::from_blob(memory, {total}, torch::kUInt8), 1);
    munmap(memory, mapped);
    close(file);
  } else if (world().rank() == 1) {
    auto out = torch::zeros({total}, torch::kUInt8);
    world().recv(out, 0);
    for (int64_t at = 0; at < total; at += period) {
      const int64_t n = std::min(period, total - at);
      ASSERT_EQ(std::memcmp(out.data_ptr<uint8_t>() + at, pattern.data_ptr(), n), 0) << "in the " << n << " bytes from " << at;
    }
  }
  world().barrier();
}

TEST(Address, WhoKnowsItselfOnlyAsLoopbackTakesTheWayToTheOthers) {
  const auto route = [](const std::string& target) { return target == "192.0.2.7" ? std::string("192.0.2.1") : "asked for " + target; };
  EXPECT_EQ(reachable_address("127.0.1.1", {"127.0.1.1", "192.0.2.7"}, route), "192.0.2.1");
  EXPECT_EQ(reachable_address("::1", {"::1", "127.0.0.1", "192.0.2.7"}, route), "192.0.2.1");
  EXPECT_EQ(reachable_address("192.0.2.7", {"127.0.1.1", "192.0.2.7"}, route), "192.0.2.7");
  EXPECT_EQ(reachable_address("127.0.0.1", {"127.0.0.1", "127.0.0.1"}, route), "127.0.0.1") << "all on one host";
}

TEST(Address, OfAnInterface) {
  EXPECT_EQ(address_of_interface("lo"), "127.0.0.1");
  try {
    address_of_interface("nosuch0");
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::usage);
    EXPECT_NE(std::string(error.what()).find("nosuch0"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("lo"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace manyranks
