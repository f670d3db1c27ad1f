#include "comm/call.hpp"

#include <fmt/format.h>

namespace manyranks {

const char* name_of(Operation operation) {
  constexpr const char* names[] = {"none",    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
                                   "all_to_all", "barrier",    "split",      "allocate",       "finish",    "send",   "recv"};
  return names[static_cast<int>(operation)];
}

Call Call::from(uint64_t kind, uint64_t count) {
  return Call{static_cast<Operation>(kind & 0xff), static_cast<Dtype>(kind >> 8 & 0xff), static_cast<ReduceOp>(kind >> 16 & 0xff),
              static_cast<int>(kind >> 32), count};
}

std::string Call::text() const {
  const auto with = [&](const std::string& more) { return fmt::format("{}({}, {}{})", name_of(operation), name_of(dtype), count, more); };
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter: return with(fmt::format(", {}", name_of(op)));
    case Operation::reduce: return with(fmt::format(", {}, root {}", name_of(op), root));
    case Operation::broadcast:
    case Operation::gather:
    case Operation::scatter: return with(fmt::format(", root {}", root));
    case Operation::send: return with(fmt::format(", to {}", root));
    case Operation::recv: return with(fmt::format(", from {}", root));
    case Operation::all_gather:
    case Operation::all_to_all:
    case Operation::allocate: return with("");
    default: return fmt::format("{}()", name_of(operation));
  }
}

}  // namespace manyranks
