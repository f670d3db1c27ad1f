// A rival in a process of its own (mostly Python) that sleeps on its input until it is asked: so both sides meet the same machine, by
// turns. It answers each line with a line; its standard error is ours.
//
//   LinePeer peer({python, "rival.py"}, {"RANK=0"}, timeout_s);
//   if (peer.answer() != "ready") ...
//   const double seconds = std::stod(peer.ask("run 100"));
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace manyranks {

class LinePeer {
 public:
  // `variables` go before our own, without what mpirun says about this rank: the child is not one of its ranks.
  LinePeer(std::vector<std::string> words, std::vector<std::string> variables, double timeout_s);
  ~LinePeer();  // the end of its input is the end of it, or else SIGKILL after two seconds
  LinePeer(const LinePeer&) = delete;
  LinePeer& operator=(const LinePeer&) = delete;

  std::string answer();                      // empty: it has not started, has ended, or takes longer than the time limit
  std::string ask(const std::string& line);  // throws if there is no answer

 private:
  std::string name_;
  double timeout_s_;
  pid_t child_ = -1;
  int to_ = -1, from_ = -1;
  std::string text_;
};

int free_port();  // of this host, a moment ago

}  // namespace manyranks
