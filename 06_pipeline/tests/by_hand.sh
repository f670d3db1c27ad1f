#!/bin/sh
# by_hand.sh RANKS PROGRAM ARGUMENTS...: the ranks without mpirun, each a process of this shell. Ends with the exit code of rank 0.
ranks=$1
shift
MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 12000)) WORLD_SIZE=$ranks
export MASTER_ADDR MASTER_PORT WORLD_SIZE
rank=$ranks
while [ $((rank -= 1)) -gt 0 ]; do
  RANK=$rank LOCAL_RANK=$rank "$@" &
done
RANK=0 LOCAL_RANK=0 "$@"
code=$?
wait
exit $code
