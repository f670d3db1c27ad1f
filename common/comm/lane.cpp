#include "comm/lane.hpp"

namespace manyranks {

Lane::~Lane() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Lane::enter() {
  std::lock_guard lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  if (busy_ || !jobs_.empty()) return false;
  busy_ = true;
  return true;
}

void Lane::leave(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  busy_ = false;
  if (error) broken_ = error;
  if (!jobs_.empty()) changed_.notify_all();
}

std::shared_ptr<Lane::Job> Lane::submit(std::function<void()> body) {
  auto job = std::make_shared<Job>();
  job->body_ = std::move(body);
  std::lock_guard lock(mutex_);
  jobs_.push_back(job);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  changed_.notify_all();
  return job;
}

void Lane::serve() {
  for (;;) {
    std::shared_ptr<Job> job;
    std::exception_ptr error;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return (!busy_ && !jobs_.empty()) || (stop_ && jobs_.empty()); });
      if (jobs_.empty()) return;
      job = jobs_.front();
      error = broken_;
      busy_ = true;
    }
    if (!error) {
      try {
        job->body_();
      } catch (...) {
        error = std::current_exception();
      }
    }
    job->body_ = nullptr;  // frees the tensors it holds before anybody hears that it is done
    {
      std::lock_guard lock(mutex_);
      jobs_.pop_front();
      busy_ = false;
      if (error) broken_ = error;
    }
    {
      std::lock_guard lock(job->mutex_);
      job->error_ = error;
      job->done_ = true;
    }
    job->finished_.notify_all();
  }
}

void Lane::Job::wait() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return done_; });
  if (error_) std::rethrow_exception(error_);
}

bool Lane::Job::done() const {
  std::lock_guard lock(mutex_);
  return done_;
}

}  // namespace manyranks
