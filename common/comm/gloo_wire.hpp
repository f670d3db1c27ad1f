// Gloo as a wire, through our module. TCP, no MPI needed.
#pragma once

#include <memory>
#include <string>

#include "comm/segment.hpp"  // AllGather
#include "comm/wire.hpp"

namespace manyranks {

// Collective. `master`: an address that every rank can reach, or empty; says which of this host's addresses the others can use.
// Unavailable (exit 69) if the module is not there.
std::shared_ptr<Wire> make_gloo_wire(int rank, int size, const std::string& master, double timeout_s, const AllGather& all_gather);

// Why Gloo cannot be used here, or nothing.
std::string gloo_missing();

// The address of this host on the way to `target`.
std::string address_towards(const std::string& target);

}  // namespace manyranks
