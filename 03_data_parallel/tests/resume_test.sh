#!/bin/sh
# resume_test.sh COMMAND...: four epochs in one go, and two, then two more from the checkpoint, end with the same bits on every rank; in
# fp16 with the same loss scale and count of skipped steps, and a scale that is not the one a run begins with.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
checksum() { sed -n 's/.*checksum //p' "$1"; }
scaler() { sed -n 's/.*loss scale \(.*\) steps skipped so far/\1/p' "$1" | tail -n 1; }  # "512, 0"
"$@" --epochs 4 > "$folder/whole"
"$@" --epochs 4 --checkpoint "$folder/state" --stop-after 2 > "$folder/first"
"$@" --epochs 4 --checkpoint "$folder/state" --resume > "$folder/second"
grep -q "resumed after epoch 2" "$folder/second" || { cat "$folder/second"; echo "it did not resume"; exit 1; }
[ -n "$(checksum "$folder/whole")" ] || { cat "$folder/whole"; echo "no checksum"; exit 1; }
[ "$(checksum "$folder/first")" != "$(checksum "$folder/whole")" ] || { echo "two epochs more changed nothing: the test cannot fail"; exit 1; }
[ "$(checksum "$folder/second")" = "$(checksum "$folder/whole")" ] || { cat "$folder/whole" "$folder/second"; echo "the resumed run has other bits"; exit 1; }
[ "$(scaler "$folder/second")" = "$(scaler "$folder/whole")" ] || { echo "the resumed run's scaler: $(scaler "$folder/second"); in one go: $(scaler "$folder/whole")"; exit 1; }
case "$*" in
  *fp16*) case "$(scaler "$folder/first")" in ''|*', 0') cat "$folder/first"; echo "nothing overflowed: the scale is the first one, and need not be restored"; exit 1 ;; esac ;;
esac
echo "resumed: $(checksum "$folder/second")"
