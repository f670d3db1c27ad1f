// Calls that must run one after another. A blocking call with nothing before it runs at once on the caller's thread; what is
// submitted runs in order on a thread that is started when first needed and parks when it has nothing to do.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace manyranks {

class Lane {
 public:
  class Job {
   public:
    void wait();        // throws what the job threw
    bool done() const;

   private:
    friend class Lane;
    std::function<void()> body_;
    mutable std::mutex mutex_;
    std::condition_variable finished_;
    bool done_ = false;
    std::exception_ptr error_;
  };

  Lane() = default;
  ~Lane();  // after what was submitted
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  std::shared_ptr<Job> submit(std::function<void()> body);

  template <class Body>
  void run(Body&& body) {
    if (!enter()) return submit(std::function<void()>(std::forward<Body>(body)))->wait();
    try {
      body();
    } catch (...) {
      leave(std::current_exception());
      throw;
    }
    leave(nullptr);
  }

 private:
  bool enter();  // false: others are before us
  void leave(std::exception_ptr error);
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool busy_ = false, stop_ = false;
  std::exception_ptr broken_;  // after one failure ranks are out of step: every later call fails alike
  std::thread thread_;
};

}  // namespace manyranks
