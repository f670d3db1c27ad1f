// MPI as a wire: non-blocking sends and receives on a communicator of our own, polled. MPI_Wait would spin, and has no time limit.
#pragma once

#include <memory>

#include "comm/wire.hpp"

namespace manyranks {

std::shared_ptr<Wire> make_mpi_wire(double timeout_s);  // collective over MPI_COMM_WORLD

}  // namespace manyranks
