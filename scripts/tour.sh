#!/usr/bin/env bash
# The tour: sets up, builds, and shows you around. No GPU needed; GPUs are used where they are.
#   ./scripts/tour.sh                 the core lessons in order, then the quick sweep and its report
#   ./scripts/tour.sh --chapter 03    one chapter, without the sweep
#   ./scripts/tour.sh --list          what there is to see
set -euo pipefail
here=$(dirname "$0")

# chapter | ranks | program, with flags if it is not --quick | what you are about to see
stops='
01|1|01_single_gpu/01_baseline|The plain training loop on one device: slow, honest, and the yardstick for all that follows.
01|1|01_single_gpu/02_profile|Where its time goes: data, forward, backward, optimiser; and how far from what this machine can do.
01|1|01_single_gpu/03_data_loader|Worker threads decode while the model trains: the wait for data goes away.
01|1|01_single_gpu/07_ladder|Every rung of the ladder, one change each, with what it gained, also where it lost.
02|2|02_message_passing/01_ranks --seed 1|One program, started twice by mpirun: each copy learns its rank, its host and its device.
02|1|02_message_passing/01_ranks --nodes 2 --gpus 4|The same map for a cluster that you do not have: 2 nodes with 4 GPUs each.
02|2|02_message_passing/02_point_to_point|Send, receive, and the deadlock that everybody writes once.
02|3|02_message_passing/03_collectives|Nine collectives, each with a picture.
02|3|02_message_passing/04_ring_all_reduce|The ring by hand: each byte counted, and equal to the formula.
02|2|02_message_passing/07_cost_model|A few numbers measured on this machine predict every algorithm.
02|2|02_message_passing/08_break_it|Four mistakes: what bare MPI does, and what ours says.
03|2|03_data_parallel/01_naive|Every rank trains on its own data; gradients are added; the result equals the serial run, bit by bit.
03|2|03_data_parallel/02_bucketed|The same sums in a few large messages.
03|2|03_data_parallel/03_overlapped|The same, with the sums under way while backward goes on.
03|2|03_data_parallel/06_zero1|The optimiser state cut over the ranks: less memory, the same bits.
03|2|03_data_parallel/08_zero3|Parameters, gradients and optimiser state cut over the ranks.
03|2|03_data_parallel/10_large_batch|A larger batch wants a larger learning rate, and a warm-up.
04|2|04_model_parallel/01_layer_split|A model cut in two: why only one half works at a time.
04|2|04_model_parallel/02_column_row|A layer cut in two: both halves work at once, with one all-reduce each way.
04|2|04_model_parallel/03_transformer_block|A whole transformer cut by heads and by vocabulary, equal to the dense one.
04|4|04_model_parallel/05_mesh|Tensor parallel times data parallel, on a 2 x 2 mesh.
06|2|06_pipeline/01_naive_stages|Stages on different ranks, one microbatch at a time: most of the time nobody works.
06|2|06_pipeline/02_gpipe|Several microbatches in flight: the bubble shrinks as the formula says.
06|2|06_pipeline/03_one_f_one_b|The same bubble with less memory: backward as soon as it can be.
'
chapter=""
case "${1:-}" in
  "") ;;
  --chapter) chapter=${2:-}
    grep -q "^$chapter|" <<< "$stops" && [ -n "$chapter" ] || { echo "tour.sh: --chapter wants one of: $(cut -d'|' -f1 <<< "$stops" | sort -u | xargs)" >&2; exit 64; } ;;
  --list) awk -F'|' 'NF > 3 {printf "%s  %-45s %s\n", $1, $3, $4}' <<< "$stops"; exit 0 ;;
  -h|--help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "tour.sh: unknown flag $1; see $0 --help" >&2; exit 64 ;;
esac
"$here/setup.sh"
# shellcheck source=scripts/common.sh
source "$here/common.sh"
[ -n "$chapter" ] && stops=$(grep "^$chapter|" <<< "$stops")

targets=(doctor)
while IFS='|' read -r _ _ program _; do
  [ -n "${program:-}" ] && targets+=("$(sed 's/ .*//; s/^\([0-9]*\)_[^/]*\//ch\1_/' <<< "$program")")
done <<< "$stops"
# Benchmarks whose rows make the report.
[ -n "$chapter" ] || targets+=(ch02_bench_collectives ch03_bench_scaling ch04_bench_modes ch06_bench_bubble)
say "Building"
mapfile -t targets < <(printf '%s\n' "${targets[@]}" | sort -u)
configure_and_build default "${targets[@]}"

say "What this machine has"
echo "The doctor looks at the launcher, MPI, NCCL, LibTorch, GPUs, memory and limits."
build/common/doctor

last=""
while IFS='|' read -r in_chapter n program about <&3; do
  [ -n "${about:-}" ] || continue
  words=($program)
  [ ${#words[@]} -gt 1 ] || words+=(--quick)
  folder=${words[0]%%/*}
  if [ -n "$last" ] && [ "$last" != "$folder" ]; then say "Read on: $last/README.md"; fi
  last=$folder
  say "${words[0]}, on $n rank(s)"
  echo "$about"
  echo "\$ mpirun -np $n build/${words[*]}"
  ranks "$n" "build/${words[0]}" "${words[@]:1}"
done 3<<< "$stops"
say "Read on: $last/README.md"
[ -z "$chapter" ] || exit 0

say "Measure: the quick sweep"
echo "Every benchmark, repeated, by turns, so that noise shows as spread."
results=results/tour-$(git describe --always --dirty 2>/dev/null || echo here)   # one folder per commit: a report never mixes two
python scripts/sweep.py --quick --results "$results"
say "Look: the report"
page=$PWD/$results/report.html
python scripts/report.py "$results" --out "$page" || [ $? = 1 ]   # 1: it left something out, and says so
echo "The report: $page"
if [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ] && command -v xdg-open >/dev/null; then xdg-open "$page" >/dev/null 2>&1 || true; fi
