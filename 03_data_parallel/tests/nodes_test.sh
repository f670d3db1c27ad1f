#!/bin/sh
# nodes_test.sh SCRIPT: one_vs_two_nodes.sh on a small training writes what it promises, and refuses what it must. 77 where two nodes cannot be emulated.
script=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "$1"; exit 1; }
for wrong in "--hosts only-one" "--hosts a,b,c" "--hosts a,b --rate 1gbit" "--epochs" "--nonsense"; do
  "$script" $wrong --out "$out" > "$out/refused" 2>&1
  [ $? -eq 64 ] || { cat "$out/refused"; fail "'$wrong' was not refused with exit 64"; }
done
"$script" --epochs 1 --out "$out" -- --quick --model convnet || exit $?
grep -q '| 1 x 1 | 0m' "$out/summary.md" && grep -q '| 2 x 1 | 0m' "$out/summary.md" || fail "the summary lacks a run"
grep -q '57m32s.*31m18s.*1.84x' "$out/summary.md" || fail "the summary lacks the published figure"
grep -q 'nodes emulated' "$out/summary.md" || fail "the summary does not say that the nodes are emulated"
grep -q '2 rank(s) on 2 node(s)' "$out/two.log" || fail "the second run was not on two nodes"
for file in one/utilisation_rank0.png two/utilisation_rank0.png two/utilisation_rank1.png; do [ -s "$out/$file" ] || fail "no $file"; done
