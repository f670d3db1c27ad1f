#include "03_collectives_nccl.hpp"

namespace manyranks {

#if MANYRANKS_HAVE_CUDA

NcclSide::NcclSide(const Process& process, const RawMpi& mpi, size_t floats) {
  // All or nobody: a rank without a GPU must not leave the others waiting in ncclCommInitRank.
  const int mine = process.device().is_cuda();
  int everybody = 0;
  CHECK_MPI(MPI_Allreduce(&mine, &everybody, 1, MPI_INT, MPI_MIN, mpi.world));
  if (!everybody) {
    why_not_ = process.options().device == "cpu" ? "--device cpu" : "no GPU for every rank";
    return;
  }
  CHECK_CUDA(cudaSetDevice(process.device().index()));  // NCCL takes the current device

  // One rank draws the id; it carries that rank's address, and the others connect to it. NCCL has no launcher of its own:
  // MPI (or a TCPStore, or a file) brings the 128 bytes round.
  ncclUniqueId id;
  if (mpi.rank == 0) CHECK_NCCL(ncclGetUniqueId(&id));
  CHECK_MPI(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, mpi.world));
  // A broadcast may let some ranks go before others have it. ncclCommInitRank's own time limit must not pay for that.
  CHECK_MPI(MPI_Barrier(mpi.world));
  CHECK_NCCL(ncclCommInitRank(&comm, mpi.size, id, mpi.rank));

  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaMalloc(&in, floats * sizeof(float)));   // before, not during, collectives: cudaMalloc may wait for all streams
  CHECK_CUDA(cudaMalloc(&out, floats * sizeof(float)));
}

NcclSide::~NcclSide() {
  if (comm) std::uncaught_exceptions() > 0 ? ncclCommAbort(comm) : ncclCommDestroy(comm);  // destroy waits for peers
  if (in) cudaFree(in);
  if (out) cudaFree(out);
  if (stream) cudaStreamDestroy(stream);
}

std::vector<float> NcclSide::run(const std::vector<float>& host_in, const std::vector<float>& host_out, const std::function<void()>& collective) {
  const size_t bytes = host_in.size() * sizeof(float);
  std::vector<float> result(host_out.size());
  CHECK_CUDA(cudaMemcpyAsync(in, host_in.data(), bytes, cudaMemcpyHostToDevice, stream));
  CHECK_CUDA(cudaMemcpyAsync(out, host_out.data(), bytes, cudaMemcpyHostToDevice, stream));
  collective();  // returns when it is enqueued. The stream's order is what makes the copies before and after it right
  CHECK_CUDA(cudaMemcpyAsync(result.data(), out, bytes, cudaMemcpyDeviceToHost, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));  // only now has the host the result
  return result;
}

#else

NcclSide::NcclSide(const Process&, const RawMpi&, size_t) : why_not_("built without CUDA") {}
NcclSide::~NcclSide() = default;
std::vector<float> NcclSide::run(const std::vector<float>&, const std::vector<float>& out, const std::function<void()>&) { return out; }

#endif

}  // namespace manyranks
