#!/usr/bin/env bash
# Sets up, builds and runs the tests; ends with a table of what was skipped and why.
#   ./scripts/test.sh                the everyday suite: every lesson on 2 ranks, every unit test
#   ./scripts/test.sh --full         all of it: other numbers of ranks, other CPUs, the build without CUDA, warnings as errors
#   ./scripts/test.sh --long         all of it, with fuzzers for minutes and every imitated CPU
#   ./scripts/test.sh -L smoke       further words go to ctest; -L smoke is what a newcomer needs
#   MANYRANKS_REQUIRE=gpu,nccl ./scripts/test.sh     a skip for these reasons is a failure
set -euo pipefail
size=everyday
case "${1:-}" in
  --full) size=full; shift ;;
  --long) size=long; shift ;;
  -h|--help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
here=$(dirname "$0")
started=$SECONDS
"$here/setup.sh" --tests
# shellcheck source=scripts/common.sh
source "$here/common.sh"
minutes=""
part_done() { minutes+="${minutes:+, }$1 $(((SECONDS - started) / 60)):$(printf %02d $(((SECONDS - started) % 60)))"; started=$SECONDS; }
part_done "set-up"

selection=(-LE full)
if [ $size != everyday ]; then
  selection=()
  export MANYRANKS_WERROR=ON MANYRANKS_FUZZ_SECONDS=${MANYRANKS_FUZZ_SECONDS:-15}
fi
[ $size = long ] && export MANYRANKS_FUZZ_SECONDS=300 MANYRANKS_LONG=1

say "Building (preset default)"
configure_and_build default
part_done "build"

# The build without CUDA must not rot: common/, the doctor and one lesson. On a CPU-only machine the default was that already.
if [ $size != everyday ] && [ $# = 0 ] && grep -q '^MANYRANKS_NVCC:FILEPATH=/' build/CMakeCache.txt; then
  say "Building without CUDA (preset cpu-check)"
  configure_and_build cpu-check doctor ch02_01_ranks
  say "The CPU build runs"
  ranks 2 build-cpu-check/02_message_passing/01_ranks
  part_done "build without CUDA"
fi

say "Testing"
status=0
ctest --preset default -j "$cores" --output-junit "$PWD/build/junit.xml" "${selection[@]}" "$@" || status=$?
part_done "tests"
echo
echo "Minutes: $minutes"
python scripts/skipped.py build/junit.xml
exit $status
