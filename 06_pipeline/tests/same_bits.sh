#!/bin/sh
# same_bits.sh PROGRAM MPIEXEC FLAGS...: 07_train must end with the same parameters whatever the schedule, the cut and a resumed checkpoint.
set -e
program=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

checksum() {  # RANKS ARGUMENTS...
  ranks=$1
  shift
  "$mpiexec" $flags "$ranks" "$program" --quick "$@" > "$folder/out" 2>&1 || { cat "$folder/out" >&2; return 1; }
  sed -n 's/^checksum of the parameters //p' "$folder/out"
}
expect() {  # WHAT GOT EXPECTED
  echo "$1: $2"
  [ -n "$2" ] && [ "$2" = "$3" ] || { echo "expected $3"; exit 1; }
}
mpiexec=$1
shift
flags=$*

gpt=$(checksum 1 --steps 4)
expect "gpt, 1 stage" "$gpt" "$gpt"
expect "gpt, 1f1b on 2 stages, cut 3,5" "$(checksum 2 --steps 4 --cut 3,5)" "$gpt"
expect "gpt, zb-h1 on 2 stages, cut 5,3" "$(checksum 2 --steps 4 --cut 5,3 --schedule zb-h1)" "$gpt"
expect "gpt, interleaved on 2 stages, cut 1,2,3,2" "$(checksum 2 --steps 4 --cut 1,2,3,2 --schedule interleaved --chunks 2)" "$gpt"
expect "gpt, 2 steps" "$(checksum 2 --steps 2 --cut 4,4 --checkpoint "$folder/gpt" > /dev/null && echo done)" done
expect "gpt, 2 steps and 2 more" "$(checksum 2 --steps 4 --checkpoint "$folder/gpt" --resume)" "$gpt"

mesh=$(checksum 4 --stages 2 --steps 3 --model resnet18 --batch 2 --cut 5,5)
checksum 4 --stages 2 --steps 1 --model resnet18 --batch 2 --cut 5,5 --checkpoint "$folder/resnet" > /dev/null
expect "resnet18 on 2 stages x 2 replicas, 1 step and 2 more" "$(checksum 4 --stages 2 --steps 3 --model resnet18 --batch 2 --checkpoint "$folder/resnet" --resume)" "$mesh"

for amp in bf16 fp16; do
  half=$(checksum 1 --steps 4 --amp $amp)
  expect "gpt, $amp, 1f1b on 2 stages" "$(checksum 2 --steps 4 --cut 3,5 --amp $amp)" "$half"
  [ "$half" != "$gpt" ] || { echo "$amp has the bits of float32: it did nothing"; exit 1; }
done
checksum 2 --steps 1 --cut 4,4 --amp bf16 --checkpoint "$folder/bf16" > /dev/null
expect "gpt, bf16, 1 step and 3 more" "$(checksum 2 --steps 4 --amp bf16 --checkpoint "$folder/bf16" --resume)" "$(checksum 1 --steps 4 --amp bf16)"

# fp16 from a scale that overflows: the checkpoint holds another one than a run begins with, and skipped steps that Adam must not count.
scaler() { sed -n 's/^loss scale //p' "$folder/out"; }  # "32768, 2 of 6 steps skipped"
half=$(checksum 1 --steps 6 --amp fp16 --loss-scale 1048576)
whole=$(scaler)
checksum 2 --steps 4 --cut 4,4 --amp fp16 --loss-scale 1048576 --checkpoint "$folder/fp16" > /dev/null
case "$(scaler)" in
  1048576,*|'') echo "loss scale $(scaler): nothing overflowed, so nothing has to be restored"; exit 1 ;;
esac
expect "gpt, fp16, 4 steps and 2 more" "$(checksum 2 --steps 6 --amp fp16 --loss-scale 1048576 --checkpoint "$folder/fp16" --resume)" "$half"
expect "its loss scale" "$(scaler)" "$whole"

checksum 2 --steps 12 > /dev/null
sed -n 's/^loss \([0-9.]*\) -> \([0-9.]*\) in.*/\1 \2/p' "$folder/out" | {
  read -r first last
  echo "loss $first -> $last"
  awk "BEGIN { exit !($last < $first - 0.3) }" || { echo "the loss does not fall"; exit 1; }
}
