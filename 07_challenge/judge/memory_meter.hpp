// Counts what the learner's code takes from the heap: operator new of the whole program comes here, and is counted on a thread
// while a Metered lives there.
#pragma once

#include <cstdint>

namespace manyranks {

class Metered {
 public:
  Metered();   // counts from zero
  ~Metered();
  Metered(const Metered&) = delete;
  Metered& operator=(const Metered&) = delete;
  static int64_t peak();  // of this thread, of the last one

  // Within it nothing is counted: the judge's own work inside a learner's call.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    bool was_;
  };
};

}  // namespace manyranks
