#include "comm/mpi_wire.hpp"

#include "launch/errors.hpp"
#include "launch/mpi_check.hpp"

namespace manyranks {
namespace {

class MpiRequest : public Wire::Request {
 public:
  bool test() override {
    if (done_) return true;
    int done = 0;
    CHECK_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    return done_ = done;
  }
  bool wait(Clock::time_point deadline) override {
    return poll_until(deadline, [&] { return test(); });
  }
  MPI_Request request = MPI_REQUEST_NULL;

 private:
  bool done_ = false;
};

class MpiWire : public Wire {
 public:
  explicit MpiWire(double timeout_s) {
    MpiRequest copied;
    CHECK_MPI(MPI_Comm_idup(MPI_COMM_WORLD, &world_, &copied.request));
    if (!copied.wait(Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000))))
      throw lost_peer_error("MPI_Comm_idup", "some rank did not come");
  }
  // The communicator is left to MPI_Finalize: freeing it would wait for the others.
  std::string name() const override { return "MPI"; }

  std::unique_ptr<Request> send(int to, int channel, const void* data, size_t bytes) override {
    auto request = std::make_unique<MpiRequest>();
    CHECK_MPI(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, channel, world_, &request->request));
    return request;
  }
  std::unique_ptr<Request> recv(int from, int channel, void* data, size_t bytes) override {
    auto request = std::make_unique<MpiRequest>();
    CHECK_MPI(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, channel, world_, &request->request));
    return request;
  }

 private:
  MPI_Comm world_ = MPI_COMM_NULL;
};

}  // namespace

std::shared_ptr<Wire> make_mpi_wire(double timeout_s) { return std::make_shared<MpiWire>(timeout_s); }

}  // namespace manyranks
