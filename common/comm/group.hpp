// Collectives over pointers, without LibTorch: what a Communicator maps its tensors to. One thread calls at a time.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "comm/call.hpp"
#include "comm/mailbox.hpp"  // Mailbox

namespace manyranks {

inline void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes && to != from) std::memcpy(to, from, bytes);
}

class Group {
 public:
  virtual ~Group() = default;
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string transport() const = 0;

  virtual void all_reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op) = 0;
  // in: size() parts of `count`; out: my part of their sum
  virtual void reduce_scatter(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op) = 0;
  virtual void reduce(void* out, const void* in, size_t count, Dtype dtype, ReduceOp op, int root) = 0;
  // all_gather, broadcast, gather, scatter, all_to_all: `count` elements of each rank that gives to each that takes.
  virtual void exchange(Operation operation, void* out, const void* in, size_t count, Dtype dtype, int root) = 0;
  // barrier, split, allocate, finish: everybody is here, and in the same call.
  virtual void meet(const Call& call) = 0;

  virtual Mailbox& mailbox() = 0;

  // What another rank received, or read, from this one.
  int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  void reset_bytes_sent() { bytes_sent_ = 0; }

 protected:
  void count_sent(size_t bytes) { bytes_sent_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed); }
  std::atomic<int64_t> bytes_sent_{0};
};

// Who gives and who takes in an exchange, and where a rank's part lies. The five of them differ in nothing else.
struct ExchangeShape {
  ExchangeShape(Operation operation, int root) : operation_(operation), root_(root) {}
  bool gives(int rank) const { return (operation_ != Operation::broadcast && operation_ != Operation::scatter) || rank == root_; }
  bool takes(int rank) const { return operation_ != Operation::gather || rank == root_; }
  bool own_part_per_taker() const { return operation_ == Operation::scatter || operation_ == Operation::all_to_all; }
  bool own_part_per_giver() const { return operation_ == Operation::all_gather || operation_ == Operation::gather || operation_ == Operation::all_to_all; }
  size_t in_part(int taker) const { return own_part_per_taker() ? taker : 0; }
  size_t out_part(int giver) const { return own_part_per_giver() ? giver : 0; }

 private:
  Operation operation_;
  int root_;
};

}  // namespace manyranks
