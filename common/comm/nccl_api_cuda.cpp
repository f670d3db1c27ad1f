#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstring>

#include "comm/nccl_api.hpp"
#include "launch/errors.hpp"

namespace manyranks {
namespace {

void check_cuda(cudaError_t code, const char* expression) {
  if (code != cudaSuccess) throw unavailable_error(expression, cudaGetErrorString(code), "nvidia-smi, and the lines above");
}

// In progress is no error: the communicators are non-blocking.
void check_nccl(ncclResult_t code, const char* expression) {
  if (code != ncclSuccess && code != ncclInProgress) throw lost_peer_error(expression, ncclGetErrorString(code), "NCCL_DEBUG=INFO");
}

#define CHECK_CUDA(call) check_cuda((call), #call)
#define CHECK_NCCL(call) check_nccl((call), #call)

ncclDataType_t nccl_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32: return ncclFloat32;
    case Dtype::float64: return ncclFloat64;
    case Dtype::float16: return ncclFloat16;
    case Dtype::bfloat16: return ncclBfloat16;
    case Dtype::int32: return ncclInt32;
    case Dtype::int64: return ncclInt64;
    default: return ncclUint8;
  }
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::product: return ncclProd;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    default: return ncclSum;
  }
}

class RealNccl : public NcclApi {
 public:
  explicit RealNccl(int device) : device_(static_cast<c10::DeviceIndex>(device)) { CHECK_CUDA(cudaSetDevice(device)); }

  int header_version() override { return NCCL_VERSION_CODE; }
  int library_version() override {
    int version = 0;
    CHECK_NCCL(ncclGetVersion(&version));
    return version;
  }
  UniqueId unique_id() override {
    ncclUniqueId id;
    CHECK_NCCL(ncclGetUniqueId(&id));
    UniqueId bytes;
    static_assert(sizeof id == sizeof bytes);
    std::memcpy(bytes.data(), &id, sizeof id);
    return bytes;
  }

  Comm init(int size, const UniqueId& bytes, int rank) override {
    ncclUniqueId id;
    std::memcpy(&id, bytes.data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRankConfig(&comm, size, id, rank, &config));
    return comm;
  }
  Comm split(Comm comm, int color, int key) override {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t child = nullptr;
    CHECK_NCCL(ncclCommSplit(of(comm), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &child, &config));
    return child;
  }
  State state(Comm comm) override {
    ncclResult_t result = ncclSuccess;
    if (ncclCommGetAsyncError(of(comm), &result) != ncclSuccess) return State::failed;
    return result == ncclSuccess ? State::good : result == ncclInProgress ? State::in_progress : State::failed;
  }
  std::string last_error(Comm comm) override { return ncclGetLastError(of(comm)); }
  void finalize(Comm comm) override { CHECK_NCCL(ncclCommFinalize(of(comm))); }
  void destroy(Comm comm) override { ncclCommDestroy(of(comm)); }
  void abort(Comm comm) override { ncclCommAbort(of(comm)); }

  void group_start() override { CHECK_NCCL(ncclGroupStart()); }
  void group_end() override { CHECK_NCCL(ncclGroupEnd()); }
  void all_reduce(const void* in, void* out, size_t count, Dtype dtype, ReduceOp op, Comm comm, Stream stream) override {
    CHECK_NCCL(ncclAllReduce(in, out, count, nccl_type(dtype), nccl_op(op), of(comm), on(stream)));
  }
  void reduce_scatter(const void* in, void* out, size_t count, Dtype dtype, ReduceOp op, Comm comm, Stream stream) override {
    CHECK_NCCL(ncclReduceScatter(in, out, count, nccl_type(dtype), nccl_op(op), of(comm), on(stream)));
  }
  void reduce(const void* in, void* out, size_t count, Dtype dtype, ReduceOp op, int root, Comm comm, Stream stream) override {
    CHECK_NCCL(ncclReduce(in, out, count, nccl_type(dtype), nccl_op(op), root, of(comm), on(stream)));
  }
  void all_gather(const void* in, void* out, size_t count, Dtype dtype, Comm comm, Stream stream) override {
    CHECK_NCCL(ncclAllGather(in, out, count, nccl_type(dtype), of(comm), on(stream)));
  }
  void broadcast(const void* in, void* out, size_t count, Dtype dtype, int root, Comm comm, Stream stream) override {
    CHECK_NCCL(ncclBroadcast(in, out, count, nccl_type(dtype), root, of(comm), on(stream)));
  }
  void send(const void* in, size_t count, Dtype dtype, int to, Comm comm, Stream stream) override {
    CHECK_NCCL(ncclSend(in, count, nccl_type(dtype), to, of(comm), on(stream)));
  }
  void recv(void* out, size_t count, Dtype dtype, int from, Comm comm, Stream stream) override {
    CHECK_NCCL(ncclRecv(out, count, nccl_type(dtype), from, of(comm), on(stream)));
  }

  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    CHECK_NCCL(ncclMemAlloc(&memory, bytes));
    return memory;
  }
  void release(void* memory) override { ncclMemFree(memory); }

  Stream make_stream() override {
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void destroy_stream(Stream stream) override { cudaStreamDestroy(on(stream)); }
  Stream compute_stream() override { return at::cuda::getCurrentCUDAStream(device_).stream(); }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override { CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on(stream))); }
  Event make_event() override {
    cudaEvent_t event = nullptr;
    CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void destroy_event(Event event) override { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
  void record(Event event, Stream stream) override { CHECK_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(event), on(stream))); }
  void make_wait(Stream stream, Event event) override { CHECK_CUDA(cudaStreamWaitEvent(on(stream), static_cast<cudaEvent_t>(event), 0)); }
  bool reached(Event event) override {
    const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (code == cudaErrorNotReady) return false;
    CHECK_CUDA(code);
    return true;
  }

 private:
  static ncclComm_t of(Comm comm) { return static_cast<ncclComm_t>(comm); }
  static cudaStream_t on(Stream stream) { return static_cast<cudaStream_t>(stream); }
  c10::DeviceIndex device_;
};

}  // namespace

std::shared_ptr<NcclApi> make_nccl_api(int device) { return std::make_shared<RealNccl>(device); }

}  // namespace manyranks
