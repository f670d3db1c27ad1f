// How ranks find each other before a Communicator stands: by MPI, by a TCPStore, or not at all (one rank).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launch/identity.hpp"

namespace manyranks {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Everybody's `mine`, by rank. Collective and bounded by the timeout: a rank that never comes is named.
  virtual std::vector<std::string> all_gather(const std::string& mine) = 0;

  // Tells the other ranks, on whatever host, that the job is over. MPI kills them; a store only carries the word.
  virtual void end_job(int code) noexcept = 0;
  // What a peer on another host said through end_job(): the exit code, or 0. MPI needs no asking.
  virtual int ended_by_peer() noexcept { return 0; }
};

std::unique_ptr<Rendezvous> rendezvous_alone();
std::unique_ptr<Rendezvous> rendezvous_by_mpi(double timeout_s);  // after MPI_Init_thread
std::unique_ptr<Rendezvous> rendezvous_by_store(const Identity& identity, double timeout_s);

}  // namespace manyranks
