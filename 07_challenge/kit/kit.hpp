// All that an exercise may use: a door between ranks, matrices, a random generator. Plain C++; an exercise compiles in a second.
// The judge gives you a Ranks that runs over the real Communicator and counts what you do with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace manyranks {

class Ranks {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Two that wait for each other: send returns when the other rank has taken the message (as MPI_Ssend does).
  virtual void send(int to, std::span<const float> data) = 0;
  virtual void recv(int from, std::span<float> data) = 0;
  // Both at once; `to` and `from` may be the same rank, also your own.
  virtual void send_recv(int to, std::span<const float> out, int from, std::span<float> in) = 0;

  // Collectives: every rank makes the same call. In place where there is one argument.
  virtual void all_reduce(std::span<float> data) = 0;      // the sum
  virtual void all_reduce_max(std::span<float> data) = 0;  // the largest
  virtual void reduce_scatter(std::span<float> out, std::span<const float> in) = 0;  // out = my part of the sum; out may be that part of in
  virtual void all_gather(std::span<float> out, std::span<const float> in) = 0;      // out = [in of rank 0, in of rank 1, ...]; in may be my part of out
  virtual void broadcast(std::span<float> data, int root) = 0;

 protected:
  ~Ranks() = default;
};

// Part i of p of `count` elements: [begin(i), begin(i + 1)). Sizes differ by at most one.
struct Parts {
  size_t count;
  int parts;
  size_t begin(int i) const { return count / parts * i + std::min<size_t>(i, count % parts); }
  size_t size(int i) const { return begin(i + 1) - begin(i); }
  template <class T>
  std::span<T> of(std::span<T> all, int i) const { return all.subspan(begin(i), size(i)); }
};

// A view of rows x columns numbers, row after row.
struct Matrix {
  size_t rows, columns;
  std::span<float> data;
  float& at(size_t row, size_t column) const { return data[row * columns + column]; }
  std::span<float> row(size_t i) const { return data.subspan(i * columns, columns); }
};

// out = a b          a is n x k, b is k x m, out is n x m
inline void multiply(const Matrix& out, const Matrix& a, const Matrix& b) {
  std::fill(out.data.begin(), out.data.end(), 0.0f);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < a.columns; ++j)
      for (size_t c = 0; c < b.columns; ++c) out.at(i, c) += a.at(i, j) * b.at(j, c);
}
// out = a^T b        a is n x k, b is n x m, out is k x m
inline void multiply_first_transposed(const Matrix& out, const Matrix& a, const Matrix& b) {
  std::fill(out.data.begin(), out.data.end(), 0.0f);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < a.columns; ++j)
      for (size_t c = 0; c < b.columns; ++c) out.at(j, c) += a.at(i, j) * b.at(i, c);
}
// out = a b^T        a is n x m, b is k x m, out is n x k
inline void multiply_second_transposed(const Matrix& out, const Matrix& a, const Matrix& b) {
  std::fill(out.data.begin(), out.data.end(), 0.0f);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < b.rows; ++j)
      for (size_t c = 0; c < a.columns; ++c) out.at(i, j) += a.at(i, c) * b.at(j, c);
}

// splitmix64: the whole state is one number, so that it can be saved and restored.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t limit) { return static_cast<int64_t>(next() % static_cast<uint64_t>(limit)); }
  float uniform() { return static_cast<float>(next() >> 40) / 16777216.0f; }  // [0, 1)
  uint64_t state() const { return state_; }
  void set_state(uint64_t state) { state_ = state; }

 private:
  uint64_t state_;
};

// 0, 1, ..., count - 1 in an order that depends on the seed and on nothing else.
inline std::vector<int64_t> shuffled(int64_t count, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  Random random(seed);
  for (int64_t i = count - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

}  // namespace manyranks
