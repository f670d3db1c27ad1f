#!/bin/sh
# resume_test.sh COMMAND...: four epochs in one go, and two, then two more from the checkpoint, end with the same bits on every rank.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
checksum() { sed -n 's/.*checksum //p' "$1"; }
"$@" --epochs 4 > "$folder/whole"
"$@" --epochs 4 --checkpoint "$folder/state" --stop-after 2 > "$folder/first"
"$@" --epochs 4 --checkpoint "$folder/state" --resume > "$folder/second"
grep -q "resumed after epoch 2" "$folder/second" || { cat "$folder/second"; echo "it did not resume"; exit 1; }
[ -n "$(checksum "$folder/whole")" ] || { cat "$folder/whole"; echo "no checksum"; exit 1; }
[ "$(checksum "$folder/first")" != "$(checksum "$folder/whole")" ] || { echo "two epochs more changed nothing: the test cannot fail"; exit 1; }
[ "$(checksum "$folder/second")" = "$(checksum "$folder/whole")" ] || { cat "$folder/whole" "$folder/second"; echo "the resumed run has other bits"; exit 1; }
echo "resumed: $(checksum "$folder/second")"
