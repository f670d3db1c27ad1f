// A timeline for chrome://tracing or ui.perfetto.dev: one process per rank, one row per lane ("compute", "comm").
//
//   Trace trace(process.rank(), process.host());
//   { auto span = trace.span("compute", "forward 3"); ... }
//   const auto all = process.rendezvous().all_gather(trace.to_json_events());
//   if (process.is_root()) write_trace(options.trace, all);
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace manyranks {

class Trace {
 public:
  Trace(int rank, std::string host);

  // Seconds of the wall clock, advancing steadily: comparable between ranks as far as their hosts' clocks agree.
  double now_s() const;
  void complete(const std::string& lane, const std::string& name, double start_s, double end_s);  // from any thread

  class Span {  // from its birth to the end of its scope
   public:
    Span(Trace& trace, std::string lane, std::string name);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Trace& trace_;
    std::string lane_, name_;
    double start_s_;
  };
  Span span(std::string lane, std::string name) { return Span(*this, std::move(lane), std::move(name)); }

  std::string to_json_events() const;  // this rank's part: a JSON array

 private:
  struct Event {
    int lane;
    std::string name;
    double start_s, end_s;
  };
  int rank_;
  std::string host_;
  double wall_at_start_s_, steady_at_start_s_;
  mutable std::mutex mutex_;
  std::map<std::string, int> lanes_;  // in order of first use
  std::vector<Event> events_;
};

// The whole trace from every rank's part; time zero is the first event. Throws exit 65 if a part is no JSON array.
std::string merge_traces(const std::vector<std::string>& parts);
void write_trace(const std::string& path, const std::vector<std::string>& parts);  // exit 74 if it cannot

}  // namespace manyranks
