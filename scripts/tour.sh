#!/usr/bin/env bash
# The tour: sets up, builds, and shows you around. No GPU needed; GPUs are used where they are.
set -euo pipefail
here=$(dirname "$0")
"$here/setup.sh"
# shellcheck source=scripts/common.sh
source "$here/common.sh"

stop() {  # stop TITLE WHAT-YOU-WILL-SEE COMMAND...
  say "$1"; echo "$2"; shift 2
  echo "\$ $*"; "$@"
}

say "Building"
configure_and_build default doctor ch02_01_ranks

stop "1. What this machine has" "The doctor looks at the launcher, MPI, NCCL, LibTorch, GPUs, memory and limits." build/common/doctor
stop "2. Who am I, alone" "One process, no launcher: rank 0 of 1." build/02_message_passing/01_ranks
stop "3. Who am I, on two ranks" "The same program, started twice by mpirun: each learns its rank, its host and its device." \
  ranks 2 build/02_message_passing/01_ranks
stop "4. A cluster that you do not have" "The same map for 2 nodes with 4 GPUs each, one process per GPU." \
  build/02_message_passing/01_ranks --nodes 2 --gpus 4
say "Read on: 02_message_passing/README.md"
