#!/usr/bin/env bash
# The tour: sets up, builds, and shows you around. No GPU needed; GPUs are used where they are.
#   ./scripts/tour.sh                 all of it
#   ./scripts/tour.sh --chapter 02    one chapter
set -euo pipefail
here=$(dirname "$0")
chapter=""
case "${1:-}" in
  "") ;;
  --chapter) chapter=${2:?--chapter wants a number: 02 or 03} ;;
  -h|--help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "tour.sh: unknown flag $1; see $0 --help" >&2; exit 64 ;;
esac
"$here/setup.sh"
# shellcheck source=scripts/common.sh
source "$here/common.sh"

visit() { [ -z "$chapter" ] || [ "$chapter" = "$1" ]; }
stop() {  # stop TITLE WHAT-YOU-WILL-SEE COMMAND...
  say "$1"; echo "$2"; shift 2
  echo "\$ $*"; "$@"
}
quick_lesson() {  # quick_lesson RANKS PROGRAM WHAT-YOU-WILL-SEE
  stop "$2, on $1 rank(s)" "$3" ranks "$1" "build/$2" --quick
}

targets=(doctor)
if visit 02; then targets+=(ch02_01_ranks ch02_02_point_to_point ch02_04_ring_all_reduce ch02_07_cost_model ch02_08_break_it); fi
if visit 03; then targets+=(ch03_01_naive ch03_03_overlapped ch03_08_zero3); fi
say "Building"
configure_and_build default "${targets[@]}"

stop "What this machine has" "The doctor looks at the launcher, MPI, NCCL, LibTorch, GPUs, memory and limits." build/common/doctor

if visit 02; then
  stop "Who am I, alone" "One process, no launcher: rank 0 of 1." build/02_message_passing/01_ranks
  stop "Who am I, on two ranks" "The same program, started twice by mpirun: each learns its rank, its host and its device." ranks 2 build/02_message_passing/01_ranks
  stop "A cluster that you do not have" "The same map for 2 nodes with 4 GPUs each, one process per GPU." build/02_message_passing/01_ranks --nodes 2 --gpus 4
  quick_lesson 2 02_message_passing/02_point_to_point "Send, receive, and the deadlock that everybody writes once."
  quick_lesson 3 02_message_passing/04_ring_all_reduce "The ring by hand: each byte counted, and equal to the formula."
  quick_lesson 2 02_message_passing/07_cost_model "Two lines fitted on this machine predict every algorithm."
  quick_lesson 2 02_message_passing/08_break_it "Four mistakes: what bare MPI does, and what ours says."
fi
if visit 03; then
  quick_lesson 2 03_data_parallel/01_naive "Every rank trains on its own data; gradients are added; the result equals the serial run, bit by bit."
  quick_lesson 2 03_data_parallel/03_overlapped "The same, with the sums under way while backward goes on."
  quick_lesson 2 03_data_parallel/08_zero3 "The same, with parameters, gradients and optimiser state cut over the ranks."
fi
say "Read on: 02_message_passing/README.md, 03_data_parallel/README.md"
