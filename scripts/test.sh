#!/usr/bin/env bash
# Sets up, builds and runs the whole test suite; ends with a table of what was skipped and why.
#   ./scripts/test.sh                everything
#   ./scripts/test.sh -L smoke       further words go to ctest
#   MANYRANKS_REQUIRE=gpu,nccl ./scripts/test.sh     a skip for these reasons is a failure
set -euo pipefail
here=$(dirname "$0")
"$here/setup.sh" --tests
# shellcheck source=scripts/common.sh
source "$here/common.sh"

say "Building (preset default)"
configure_and_build default

# The build without CUDA must not rot: common/, the doctor and one lesson. On a CPU-only machine the default was that already.
if [ $# = 0 ] && grep -q '^MANYRANKS_NVCC:FILEPATH=/' build/CMakeCache.txt; then
  say "Building without CUDA (preset cpu-check)"
  configure_and_build cpu-check doctor ch02_01_ranks
  say "The CPU build runs"
  ranks 2 build-cpu-check/02_message_passing/01_ranks
fi

say "Testing"
status=0
ctest --preset default -j "$cores" --output-junit "$PWD/build/junit.xml" "$@" || status=$?
python scripts/skipped.py build/junit.xml
exit $status
