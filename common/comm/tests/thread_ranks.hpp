// Ranks as threads of one process: what the algorithms and the shared-memory layer are tested with, also under ThreadSanitizer.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/algorithms.hpp"
#include "comm/segment.hpp"

namespace manyranks::test {

// Runs body(rank) on `ranks` threads; throws what the first of them threw.
inline void run_ranks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(ranks);
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

// all_gather of strings among threads.
class Table {
 public:
  explicit Table(int ranks) : ranks_(ranks) {}
  std::vector<std::string> all_gather(int rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    const int round = round_of_[rank]++;
    auto& texts = rounds_[round];
    texts.resize(ranks_);
    texts[rank] = mine;
    ++arrived_[round];
    changed_.notify_all();
    changed_.wait(lock, [&] { return arrived_[round] == ranks_; });
    return rounds_[round];
  }
  AllGather of(int rank) {
    return [this, rank](const std::string& mine) { return all_gather(rank, mine); };
  }

 private:
  int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> round_of_, arrived_;
  std::map<int, std::vector<std::string>> rounds_;
};

// Letters between threads; sending never blocks.
class Post {
 public:
  void put(int from, int to, std::vector<std::byte> letter) {
    std::lock_guard lock(mutex_);
    boxes_[{from, to}].push_back(std::move(letter));
    changed_.notify_all();
  }
  std::vector<std::byte> take(int from, int to) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[{from, to}];
    changed_.wait(lock, [&] { return !box.empty(); });
    auto letter = std::move(box.front());
    box.pop_front();
    return letter;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> boxes_;
};

class ThreadTransport : public Transport {
 public:
  // `ranks`: who takes part, by number in the post.
  ThreadTransport(Post& post, std::vector<int> ranks, int rank) : post_(post), ranks_(std::move(ranks)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  void send(int to, const void* data, size_t bytes) override {
    const auto* from = static_cast<const std::byte*>(data);
    sent += bytes;
    post_.put(ranks_[rank_], ranks_[to], std::vector<std::byte>(from, from + bytes));
  }
  void recv(int from, void* data, size_t bytes) override {
    const auto letter = post_.take(ranks_[from], ranks_[rank_]);
    if (letter.size() != bytes) throw std::runtime_error("a message of another size was expected");
    if (bytes) std::memcpy(data, letter.data(), bytes);
  }
  void send_recv(int to, const void* out, size_t out_bytes, int from, void* in, size_t in_bytes) override {
    send(to, out, out_bytes);
    recv(from, in, in_bytes);
  }
  size_t sent = 0;

 private:
  Post& post_;
  std::vector<int> ranks_;
  int rank_;
};

}  // namespace manyranks::test
