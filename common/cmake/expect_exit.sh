#!/bin/sh
# expect_exit.sh CODE TEXT COMMAND...: the command must end with that code and say that text.
code=$1 text=$2
shift 2
output=$("$@" 2>&1)
got=$?
printf '%s\n' "$output"
[ "$got" -eq "$code" ] || { echo "exit $got, expected $code"; exit 1; }
printf '%s' "$output" | grep -q -- "$text" || { echo "the output lacks: $text"; exit 1; }
