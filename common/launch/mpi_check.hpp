// CHECK_MPI(call): an MPI error becomes an exception with the expression and MPI's own words.
// MPI only returns errors if told to: Process::start sets MPI_ERRORS_RETURN on MPI_COMM_WORLD, and communicators inherit it.
#pragma once

#include <mpi.h>

#include <string>

#include "launch/errors.hpp"

namespace manyranks {

inline void check_mpi(int code, const char* expression) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw lost_peer_error(expression, std::string(text, length));
}

}  // namespace manyranks

#define CHECK_MPI(call) ::manyranks::check_mpi((call), #call)
