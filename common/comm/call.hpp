// What a rank says about a call before it takes part in it. Ranks that disagree end, with both calls named.
#pragma once

#include <cstdint>
#include <string>

#include "comm/dtype.hpp"

namespace manyranks {

enum class Operation : uint8_t { none, all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, all_to_all, barrier, split, allocate, finish, send, recv };
const char* name_of(Operation operation);

struct Call {
  Operation operation = Operation::none;
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;         // or the peer, of send and recv
  uint64_t count = 0;   // elements, of one rank's part where there are parts

  uint64_t kind() const {
    return static_cast<uint64_t>(operation) | static_cast<uint64_t>(dtype) << 8 | static_cast<uint64_t>(op) << 16 |
           static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
  }
  static Call from(uint64_t kind, uint64_t count);
  std::string text() const;  // "all_reduce(float32, 1024, sum)"
};

}  // namespace manyranks
