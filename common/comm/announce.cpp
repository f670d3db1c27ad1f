#include "comm/announce.hpp"

#include "comm/host_communicator.hpp"
#include "comm/nccl_communicator.hpp"

namespace manyranks {

void announce(Communicator& communicator, std::string_view what) {
  if (auto* host = dynamic_cast<HostCommunicator*>(&communicator)) host->peers().announce(what);
  if (auto* nccl = dynamic_cast<NcclCommunicator*>(&communicator)) nccl->peers().announce(what);
}

}  // namespace manyranks
