// Any bytes as a schedule file: a schedule that survives being written and read again, or a data_error; and checks that always end.
#include <cstdlib>

#include "../check.hpp"
#include "launch/errors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace manyranks::pipeline;
  try {
    const Schedule schedule = schedule_from_csv({reinterpret_cast<const char*>(bytes), size}, "fuzz");
    if (!(schedule_from_csv(schedule_to_csv(schedule), "fuzz") == schedule)) std::abort();
    if (check(schedule).empty() && !fewest_buffers(schedule)) std::abort();
  } catch (const manyranks::Error& error) {
    if (error.code != manyranks::Exit::data) std::abort();
  }
  return 0;
}
