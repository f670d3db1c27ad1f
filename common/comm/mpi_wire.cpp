#include "comm/mpi_wire.hpp"

#include <algorithm>
#include <vector>

#include "launch/errors.hpp"
#include "launch/mpi_check.hpp"

namespace manyranks {
namespace {

class MpiRequest : public Wire::Request {
 public:
  bool test() override {
    if (done_) return true;
    int done = 0;
    CHECK_MPI(MPI_Testall(static_cast<int>(pieces.size()), pieces.data(), &done, MPI_STATUSES_IGNORE));
    return done_ = done;
  }
  bool wait(Clock::time_point deadline) override {
    return poll_until(deadline, [&] { return test(); });
  }
  std::vector<MPI_Request> pieces;

 private:
  bool done_ = false;
};

class MpiWire : public Wire {
 public:
  explicit MpiWire(double timeout_s) {
    MpiRequest copied;
    CHECK_MPI(MPI_Comm_idup(MPI_COMM_WORLD, &world_, &copied.pieces.emplace_back(MPI_REQUEST_NULL)));
    if (!copied.wait(Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000))))
      throw lost_peer_error("MPI_Comm_idup", "some rank did not come");
  }
  // The communicator is left to MPI_Finalize: freeing it would wait for the others.
  std::string name() const override { return "MPI"; }

  std::unique_ptr<Request> send(int to, int channel, const void* data, size_t bytes) override {
    return in_pieces(bytes, [&](size_t at, int count, MPI_Request* request) {
      CHECK_MPI(MPI_Isend(static_cast<const std::byte*>(data) + at, count, MPI_BYTE, to, channel, world_, request));
    });
  }
  std::unique_ptr<Request> recv(int from, int channel, void* data, size_t bytes) override {
    return in_pieces(bytes, [&](size_t at, int count, MPI_Request* request) {
      CHECK_MPI(MPI_Irecv(static_cast<std::byte*>(data) + at, count, MPI_BYTE, from, channel, world_, request));
    });
  }

 private:
  // Both sides cut alike, and MPI keeps the order of messages between two ranks: a piece meets its counterpart.
  template <class Start>
  std::unique_ptr<Request> in_pieces(size_t bytes, Start&& start) {
    auto request = std::make_unique<MpiRequest>();
    request->pieces.assign(std::max<size_t>(1, (bytes + largest_piece - 1) / largest_piece), MPI_REQUEST_NULL);
    for (size_t i = 0; i < request->pieces.size(); ++i)
      start(i * largest_piece, static_cast<int>(std::min(largest_piece, bytes - i * largest_piece)), &request->pieces[i]);
    return request;
  }
  MPI_Comm world_ = MPI_COMM_NULL;
};

}  // namespace

std::shared_ptr<Wire> make_mpi_wire(double timeout_s) { return std::make_shared<MpiWire>(timeout_s); }

}  // namespace manyranks
