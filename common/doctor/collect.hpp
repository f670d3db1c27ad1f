// The facts of the node that this rank runs on.
#pragma once

#include "doctor/findings.hpp"  // NodeFacts

namespace manyranks {
class Process;
}

namespace manyranks::doctor {

NodeFacts collect(const Process& process);

}  // namespace manyranks::doctor
