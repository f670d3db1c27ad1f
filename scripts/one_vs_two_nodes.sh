#!/usr/bin/env bash
# The same training on one node and on two: wall time, speed-up, utilisation and accuracy, beside what the course mnmg published
# for one GPU on each of two nodes (57m32s -> 31m18s, 1.84x).
#
#   ./scripts/one_vs_two_nodes.sh [flags] [-- FLAGS OF 03_data_parallel/11_train ...]
#
#   --hosts A,B          two real nodes, reachable by mpirun (or inside a Slurm job); without it two emulated ones on this
#                        machine (two_nodes.sh; needs root), which share its cores and its memory bandwidth
#   --ranks-per-node N   ranks on each node, one per GPU or core (default 1)
#   --rate RATE          speed of the emulated link, as two_nodes.sh has it (default: as fast as the kernel copies)
#   --epochs N           the same on one node and on two (default 4)
#   --out DIR            default results/one_vs_two_nodes
#
#   ./scripts/one_vs_two_nodes.sh --epochs 2 -- --model convnet --train-size 2000
#   ./scripts/one_vs_two_nodes.sh --hosts node07,node08 --ranks-per-node 4 --epochs 90 -- --model resnet50 --data /data/imagenet
#
# The batch is per rank, so two nodes make half as many steps per epoch with twice the batch, and the learning rate follows
# (linear scaling). Wall time is that of the whole command, start-up included. Writes DIR/summary.md, DIR/runs.csv, DIR/*.log
# and the utilisation plots DIR/*/utilisation_rank*.png.
#
# Exit codes: 0, the training's own, 64 usage, 69 not built, 77 skipped (two_nodes.sh says why).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH" LC_ALL=C

fault() { printf 'one_vs_two_nodes: error: %s; try: %s [exit %d]\n' "$2" "$3" "$1" >&2; exit "$1"; }
value() { [ "$2" -ge 2 ] || fault 64 "$1 wants a value" "--help"; }
hosts="" ranks_per_node=1 rate="" epochs=4 out=results/one_vs_two_nodes
while [ $# -gt 0 ]; do
  case "$1" in
    --hosts)          value "$1" $#; hosts=$2; shift 2 ;;
    --ranks-per-node) value "$1" $#; ranks_per_node=$2; shift 2 ;;
    --rate)           value "$1" $#; rate=$2; shift 2 ;;
    --epochs)         value "$1" $#; epochs=$2; shift 2 ;;
    --out)            value "$1" $#; out=$2; shift 2 ;;
    -h|--help)        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --)               shift; break ;;
    *)                fault 64 "unknown flag $1 (flags of 11_train go after --)" "--help" ;;
  esac
done
case "$ranks_per_node$epochs" in *[!0-9]*) fault 64 "--ranks-per-node and --epochs want whole numbers" "--help" ;; esac
train=build/03_data_parallel/11_train
[ -x "$train" ] || fault 69 "$train is not built" "cmake --build build --target ch03_11_train"
if [ -n "$hosts" ]; then
  case "$hosts" in
    *,*,*|,*|*,|*[!A-Za-z0-9.,_-]*) fault 64 "--hosts '$hosts' is not two host names" "--hosts A,B" ;;
    *,*) ;;
    *) fault 64 "--hosts '$hosts' names one host" "--hosts A,B" ;;
  esac
  [ -z "$rate" ] || fault 64 "--rate shapes the emulated link only" "without --rate"
fi
mkdir -p "$out" || fault 74 "cannot make $out" "--out DIR"
rm -rf "$out/one" "$out/two" "$out/runs.csv" "$out/summary.md"

root=()
[ "$(id -u)" = 0 ] && root=(--allow-run-as-root)
on_nodes() {  # on_nodes 1|2 COMMAND...
  local nodes=$1 total; shift
  total=$(( nodes * ranks_per_node ))
  if [ -n "$hosts" ]; then
    local list="${hosts%,*}:$ranks_per_node"
    [ "$nodes" = 2 ] && list+=",${hosts#*,}:$ranks_per_node"
    mpirun "${root[@]}" -np $total --host "$list" "$@"
  elif [ "$nodes" = 1 ]; then
    mpirun "${root[@]}" --oversubscribe --bind-to none -np $total "$@"
  else
    scripts/two_nodes.sh --ranks-per-node "$ranks_per_node" ${rate:+--rate "$rate"} "$@"
  fi
}
run() {  # run one|two NODES FLAGS...: the log, the wall time
  local name=$1 nodes=$2 start status; shift 2
  mkdir -p "$out/$name"
  echo "one_vs_two_nodes: $nodes node(s) x $ranks_per_node rank(s), $epochs epochs: $out/$name.log"
  start=$(date +%s.%N)
  on_nodes "$nodes" "$train" --epochs "$epochs" --csv "$out/runs.csv" --monitor "$out/$name" "$@" > "$out/$name.log" 2>&1
  status=$?
  if [ $status -ne 0 ]; then tail -n 5 "$out/$name.log" >&2; exit $status; fi
  awk -v start="$start" -v end="$(date +%s.%N)" 'BEGIN { printf "%.3f\n", end - start }' > "$out/$name/wall_s"
}

# Two nodes first: where they cannot be had, nobody has waited for the one.
run two 2 "$@"
run one 1 "$@"
for name in one two; do
  monitors=()
  for file in "$out/$name"/rank*.csv; do monitors+=(--monitor "$file"); done
  python3 scripts/plot.py "${monitors[@]}" --out "$out/$name" --formats png > /dev/null || fault 74 "the utilisation plots failed" "the message above"
done
python3 - "$out" "$hosts" "$ranks_per_node" "$rate" <<'PYTHON' || exit 1
import csv, pathlib, statistics, sys
out, hosts, ranks, rate = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
rows = list(csv.DictReader(open(out / "runs.csv")))
clock = lambda s: f"{int(s) // 60}m{s % 60:04.1f}s"
def busy(name):
    """Mean load of the rank's own process over its run, 100 is one core; the GPU's where there is one."""
    text = []
    for file in sorted((out / name).glob("rank*.csv")):
        samples = list(csv.DictReader(open(file)))
        column = "gpu_percent" if any(s["gpu_percent"] for s in samples) else "process_percent"
        text.append(f"{statistics.fmean(float(s[column]) for s in samples if s[column]):.0f}%")
    return " ".join(text)
lines, wall = [], {}
for name, nodes in (("one", 1), ("two", 2)):
    last = [row for row in rows if int(row["ranks"]) == nodes * ranks][-1]
    wall[name] = float((out / name / "wall_s").read_text())
    lines.append((f"{nodes} x {ranks}", clock(wall[name]), f"{float(last['rate']):.0f} {last['rate_unit']}", f"{100 * float(last['measured']):.1f}%", busy(name), last["global_batch"]))
first = rows[0]
where = f"on {hosts}" if hosts else f"two nodes emulated on one machine ({first['host']}), link {rate or 'unshaped'}: both share its cores"
text = [f"# One node against two: {first['workload']}, {first['variant']}, {'measured' if hosts else 'measured, nodes emulated'}", "",
        f"{where}; {first['device']}, {first['threads']} thread(s) per rank, commit {first['commit'][:10]}{' with local changes' if first['dirty'] == 'true' else ''}.", "",
        "| nodes x ranks | wall time | last epoch | accuracy | busy, by rank | global batch |", "|---|---|---|---|---|---|"]
text += ["| " + " | ".join(line) + " |" for line in lines]
text += ["", f"**Speed-up: {wall['one'] / wall['two']:.2f}x** in wall time. mnmg published 57m32s on one node and 31m18s on two, one GPU each: 1.84x (their machine, their network, not",
         "measured here).", ""]
(out / "summary.md").write_text("\n".join(text))
print("\n".join(text))
PYTHON
