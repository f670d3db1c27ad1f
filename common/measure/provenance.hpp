// Where a figure comes from: enough in every row to run it again.
#pragma once

#include <string>
#include <vector>

#include "measure/csv.hpp"    // Row
#include "measure/timer.hpp"  // Timing

namespace manyranks {

class Communicator;
class Process;

std::string run_id();      // random, the same all through this process; rank 0's is the job's, since only it writes
std::string utc_date();    // now, ISO 8601: "2025-03-01T12:00:00Z"
std::string build_commit();  // "unknown" in a tarball
bool build_dirty();

// Sets chapter and lesson from the program's name, and device, gpu, nodes, ranks, threads, oversubscribed, run_id, commit,
// dirty, versions, date and host.
void fill(Row& row, const Process& process);
void fill(Row& row, const Communicator& communicator);                // backend, transport
void fill(Row& row, const Timing& timing);                            // iterations, median_s, p95_s

// Fills in the process and appends the row to --csv, on rank 0 and if asked for. Every rank may call it.
void write_row(const Process& process, Row row);

// Appends the raw step times to --samples ("run_id,lesson,variant,step,seconds"), likewise.
void write_samples(const Process& process, const std::string& variant, const std::vector<double>& samples);

}  // namespace manyranks
