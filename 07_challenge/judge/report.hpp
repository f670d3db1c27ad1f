// The way from the judge to the grader: lines of a file that the grader opened before the learner's code ran, each with the grader's
// own word in front. What a learner prints goes elsewhere.
#pragma once

#include <string>

namespace manyranks {

class Report {
 public:
  Report(const std::string& file, std::string word);  // empty file: to standard output, for people
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void exercise(const std::string& name, int ranks, const std::string& device);
  void trying(const std::string& check);
  void check(const std::string& check, bool ok, const std::string& seen, const std::string& hint);
  void end(const std::string& name);

 private:
  void line(const std::string& json);
  int file_;
  std::string word_;
};

}  // namespace manyranks
