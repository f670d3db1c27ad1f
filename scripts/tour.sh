#!/usr/bin/env bash
# The tour: sets up, builds, and shows you around. No GPU needed; GPUs are used where they are.
#   ./scripts/tour.sh                 the core lessons in order, then the quick sweep and its report
#   ./scripts/tour.sh --chapter 03    one chapter, without the sweep
#   ./scripts/tour.sh --list          what there is to see
set -euo pipefail
here=$(dirname "$0")

# chapter | ranks | program, with flags if it is not --quick | what you are about to see | what you saw
stops=$(cat <<'END'
01|1|01_single_gpu/01_baseline|The plain training loop on one device: slow, honest, and the yardstick for all that follows.|A second run gave the same bits; the table says how much of each step only waited for data.
01|1|01_single_gpu/02_profile|Where its time goes: data, forward, backward, optimiser; and how far from what this machine can do.|The parts add up to the step, and for each unit of the model the roofline's time stands beside the measured one.
01|1|01_single_gpu/03_data_loader|Worker threads decode while the model trains: the wait for data goes away.|The same bits with 0, 1 or 2 workers; what changed is how long the loop waits for its data.
01|1|01_single_gpu/07_ladder|Every rung of the ladder, one change each, with what it gained, also where it lost.|Each rung was checked before it was timed, and kept only if it gained here.
02|2|02_message_passing/01_ranks --seed 1|One program, started twice by mpirun: each copy learns its rank, its host and its device.|The ranks compared notes, and agree on who is who.
02|1|02_message_passing/01_ranks --nodes 2 --gpus 4|The same map for a cluster that you do not have: 2 nodes with 4 GPUs each.|8 imagined ranks, numbered node by node: rank = node x 4 + local rank.
02|2|02_message_passing/02_point_to_point|Send, receive, and the deadlock that everybody writes once.|No synchronous send was done before its receive was posted: written with blocking calls, it would have hung.
02|3|02_message_passing/03_collectives|Nine collectives, each with a picture.|Each collective left on every rank what its picture shows.
02|3|02_message_passing/04_ring_all_reduce|The ring by hand: each byte counted, and equal to the formula.|The same bits as MPI_Allreduce, and as many bytes sent as the formula says.
02|2|02_message_passing/07_cost_model|A few numbers measured on this machine predict every algorithm.|Predicted beside measured, at sizes that were not fitted, with the error of each.
02|2|02_message_passing/08_break_it|Four mistakes: what bare MPI does, and what ours says.|Bare MPI hung or was silently wrong; ours ended each time and named the cause.
03|2|03_data_parallel/01_naive|Every rank trains on its own data; gradients are added; the result equals the serial run, bit by bit.|One all-reduce for each parameter, as many as predicted, and the serial run's bits.
03|2|03_data_parallel/02_bucketed|The same sums in a few large messages.|The same bits and the same bytes, in a single all-reduce.
03|2|03_data_parallel/03_overlapped|The same, with the sums under way while backward goes on.|The same bits again; it counted how many buckets started before backward ended.
03|2|03_data_parallel/06_zero1|The optimiser state cut over the ranks: less memory, the same bits.|The same bits and no more bytes sent, with half of the optimiser state on each of the two ranks.
03|2|03_data_parallel/08_zero3|Parameters, gradients and optimiser state cut over the ranks.|Units of parameters came and went; between them nobody held the whole model.
03|2|03_data_parallel/10_large_batch --epochs 4 --samples-per-epoch 8192|A larger batch wants a larger learning rate, and a warm-up.|After the same epochs, a large batch at the small rate of the small batch learned least; with a rate that grows with the batch it learned more.
03|2|03_data_parallel/11_train --quick --epochs 1 --model convnet|The real thing, small: data dealt to ranks, a learning rate for the global batch, validation.|A step changed the parameters as one process with all samples would; at the end all ranks held the same bits.
04|2|04_model_parallel/01_layer_split|A model cut in two: why only one half works at a time.|The dense run's bits, with a part of the layers on each rank.
04|2|04_model_parallel/02_column_row|A layer cut in two: both halves work at once, with one all-reduce each way.|One all-reduce forward and one backward, as predicted; the parameters agree with the dense run's to rounding.
04|2|04_model_parallel/03_transformer_block|A whole transformer cut by heads and by vocabulary, equal to the dense one.|Four all-reduces per block, and losses that follow the dense model's to rounding.
04|4|04_model_parallel/05_mesh --quick --tp 2 --dp 2|Tensor parallel times data parallel, on a 2 x 2 mesh.|Bytes sent along each axis of the mesh, counted apart and as predicted.
05|1|05_mixed_precision/01_formats|Every format in real bits, and a training run that fails in fp16 although no number in it is too large.|The same run learned in fp32 and not in fp16: nearly all of its gradients became zero.
05|1|05_mixed_precision/02_loss_scaling|The same run repaired: a scale for the loss that finds itself, step by step as in PyTorch.|With a scaled loss fp16 learned; a scale that was too large cost a few skipped steps, nothing more.
05|1|05_mixed_precision/04_autocast|Autocast: which operator runs in which type, and what backward has to keep.|Products ran in half precision, the loss in float32; activations shrank by less than half.
05|2|05_mixed_precision/06_amp_data_parallel|Half precision on the wire, float32 in the shards, and an infinity that all ranks act on.|One process's bits from two ranks, half of float32's bytes on the wire, and a step that all ranks skipped together.
06|2|06_pipeline/01_naive_stages|Stages on different ranks, one microbatch at a time: most of the time nobody works.|The two charts: while one stage works, the other waits.
06|2|06_pipeline/02_gpipe|Several microbatches in flight: the bubble shrinks as the formula says.|The same gradients with a smaller bubble; each stage held the activations of every microbatch.
06|2|06_pipeline/03_one_f_one_b|The same bubble with less memory: backward as soon as it can be.|The ideal chart of 1F1B, the measured one below it, and how few activations each stage had to hold.
END
)
chapter=""
case "${1:-}" in
  "") ;;
  --chapter) chapter=${2:-}
    grep -q "^$chapter|" <<< "$stops" && [ -n "$chapter" ] || { echo "tour.sh: --chapter wants one of: $(cut -d'|' -f1 <<< "$stops" | sort -u | xargs)" >&2; exit 64; } ;;
  --list) awk -F'|' '{printf "%s  %s  %-48s | %s | %s\n", $1, $2, $3, $4, $5}' <<< "$stops"; exit 0 ;;
  -h|--help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "tour.sh: unknown flag $1; see $0 --help" >&2; exit 64 ;;
esac
"$here/setup.sh"
# shellcheck source=scripts/common.sh
source "$here/common.sh"
[ -n "$chapter" ] && stops=$(grep "^$chapter|" <<< "$stops")

targets=(doctor)
while IFS='|' read -r _ _ program _; do
  targets+=("$(sed 's/ .*//; s/^\([0-9]*\)_[^/]*\//ch\1_/' <<< "$program")")
done <<< "$stops"
# Benchmarks whose rows make the report.
[ -n "$chapter" ] || targets+=(ch02_bench_collectives ch03_bench_scaling ch04_bench_modes ch05_bench_precision ch06_bench_bubble)
say "Building"
mapfile -t targets < <(printf '%s\n' "${targets[@]}" | sort -u)
configure_and_build default "${targets[@]}"

say "What this machine has"
echo "The doctor looks at the launcher, MPI, NCCL, LibTorch, GPUs, memory and limits."
build/common/doctor

last=""
while IFS='|' read -r _ n program about saw <&3; do
  words=($program)
  [ ${#words[@]} -gt 1 ] || words+=(--quick)
  folder=${words[0]%%/*}
  if [ -n "$last" ] && [ "$last" != "$folder" ]; then say "Read on: $last/README.md"; fi
  last=$folder
  say "${words[0]}, on $n rank(s)"
  echo "$about"
  echo "\$ mpirun -np $n build/${words[*]}"
  ranks "$n" "build/${words[0]}" "${words[@]:1}"
  echo "What you saw: $saw"
done 3<<< "$stops"
say "Read on: $last/README.md"
[ -z "$chapter" ] || exit 0

say "Measure: the quick sweep"
echo "Every benchmark, repeated, by turns, so that noise shows as spread."
version=$(git describe --always --dirty 2>/dev/null || echo unknown-dirty)
results=results/tour-$version   # one folder per commit: a report never mixes two
fresh=()
# Changed since when? Rows of an earlier change would stand beside those of this one: nothing is taken over.
if [[ $version == *-dirty ]]; then fresh=(--fresh); fi
python scripts/sweep.py --quick --results "$results" "${fresh[@]}"
say "Look: the report"
page=$PWD/$results/report.html
python scripts/report.py "$results" --out "$page" || [ $? = 1 ]   # 1: it left something out, and says so
echo "The report: $page"
if [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ] && command -v xdg-open >/dev/null; then xdg-open "$page" >/dev/null 2>&1 || true; fi
