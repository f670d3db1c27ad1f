// For tests on ranks: the Process that the shared main() has started.
#pragma once

#include "comm/communicator.hpp"
#include "launch/process.hpp"

namespace manyranks::test {

Process& process();
inline Communicator& world() { return process().world(); }

}  // namespace manyranks::test
