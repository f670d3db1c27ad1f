// Gloo as a wire, through our module. TCP, no MPI needed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/segment.hpp"  // AllGather
#include "comm/wire.hpp"

namespace manyranks {

// Collective. `master`: an address that every rank can reach, or empty; says which of this host's addresses the others can use.
// MANYRANKS_INTERFACE=eth0 names the interface instead; one that does not exist is exit 64, on all ranks.
// Unavailable (exit 69) if the module is not there.
std::shared_ptr<Wire> make_gloo_wire(int rank, int size, const std::string& master, double timeout_s, const AllGather& all_gather);

// Gloo's own all-reduce of floats over a wire that make_gloo_wire() made: the rival in benchmarks, nothing of ours runs on it.
void gloo_all_reduce(Wire& wire, float* data, size_t count);

// Why Gloo cannot be used here, or nothing.
std::string gloo_missing();

// The address of this host on the way to `target`.
std::string address_towards(const std::string& target);

// The address of a network interface; usage error, with the names that exist, if there is none.
std::string address_of_interface(const std::string& name);

// A host name often means 127.0.1.1 on its own host. Who found only loopback takes the address on the way to somebody who found more.
std::string reachable_address(const std::string& mine, const std::vector<std::string>& all, const std::function<std::string(const std::string&)>& towards);

}  // namespace manyranks
