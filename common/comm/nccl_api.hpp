// All that the NCCL communicator asks of NCCL and CUDA. Narrow, and without their headers, so that a test can stand in for both and
// check the order of calls, the error paths and the abort.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "comm/dtype.hpp"

namespace manyranks {

class NcclApi {
 public:
  using Comm = void*;
  using Stream = void*;
  using Event = void*;
  using UniqueId = std::array<char, 128>;
  enum class State { good, in_progress, failed };
  virtual ~NcclApi() = default;

  virtual int header_version() = 0;   // what we were compiled with
  virtual int library_version() = 0;  // what is loaded
  virtual UniqueId unique_id() = 0;

  // Non-blocking: each returns at once, state() says when it is done.
  virtual Comm init(int size, const UniqueId& id, int rank) = 0;
  virtual Comm split(Comm comm, int color, int key) = 0;  // null for a negative color
  virtual State state(Comm comm) = 0;
  virtual std::string last_error(Comm comm) = 0;
  virtual void finalize(Comm comm) = 0;
  virtual void destroy(Comm comm) = 0;
  virtual void abort(Comm comm) = 0;  // also ends the kernels that wait for a peer

  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void all_reduce(const void* in, void* out, size_t count, Dtype dtype, ReduceOp op, Comm comm, Stream stream) = 0;
  virtual void reduce_scatter(const void* in, void* out, size_t count, Dtype dtype, ReduceOp op, Comm comm, Stream stream) = 0;
  virtual void reduce(const void* in, void* out, size_t count, Dtype dtype, ReduceOp op, int root, Comm comm, Stream stream) = 0;
  virtual void all_gather(const void* in, void* out, size_t count, Dtype dtype, Comm comm, Stream stream) = 0;
  virtual void broadcast(const void* in, void* out, size_t count, Dtype dtype, int root, Comm comm, Stream stream) = 0;
  virtual void send(const void* in, size_t count, Dtype dtype, int to, Comm comm, Stream stream) = 0;
  virtual void recv(void* out, size_t count, Dtype dtype, int from, Comm comm, Stream stream) = 0;

  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) = 0;

  virtual Stream make_stream() = 0;
  virtual void destroy_stream(Stream stream) = 0;
  virtual Stream compute_stream() = 0;  // LibTorch's current one
  virtual void copy(void* to, const void* from, size_t bytes, Stream stream) = 0;  // on the device
  virtual Event make_event() = 0;
  virtual void destroy_event(Event event) = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void make_wait(Stream stream, Event event) = 0;  // the stream waits, the host does not
  virtual bool reached(Event event) = 0;
};

// The real one. Unavailable (exit 69) in a build without CUDA.
std::shared_ptr<NcclApi> make_nccl_api(int device);

}  // namespace manyranks
