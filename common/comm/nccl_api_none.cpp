#include "comm/nccl_api.hpp"
#include "launch/errors.hpp"

namespace manyranks {

std::shared_ptr<NcclApi> make_nccl_api(int) { throw unavailable_error("--backend nccl", "this was built without CUDA", "the cuda preset, or --device cpu"); }

}  // namespace manyranks
