// What this rank is doing, in the program's own words. Its peers on this host put them into their error line when it dies or does
// not come: "rank 1 died: rank 1 (pid 4711) [stage 1 of 2, backward of microbatch 2] is between calls, ...".
#pragma once

#include <string_view>

#include "comm/communicator.hpp"

namespace manyranks {

void announce(Communicator& communicator, std::string_view what);  // at most 95 letters; empty: nothing to say. Costs a few stores.

}  // namespace manyranks
