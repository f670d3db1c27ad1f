#!/usr/bin/env bash
# Does scripts/two_nodes.sh make two hosts, keep the link's rate, name what is at fault, and leave nothing behind?
#   two_nodes_test.sh TWO_NODES_SH BULK_TRANSFER
set -uo pipefail
two_nodes=$1 bulk=$2
work=$(mktemp -d) failures=0
trap 'rm -rf "$work"' EXIT

expect() { if [ "$2" = "$3" ]; then echo "ok: $1"; else echo "FAILED: $1: expected '$2', got '$3'"; failures=$((failures + 1)); fi; }
code() { "$@" >"$work/out" 2>&1; echo $?; }

# What must work without root.
expect "unknown flag is usage" 64 "$(code "$two_nodes" --no-such-flag true)"
expect "rate without unit is usage" 64 "$(code "$two_nodes" --rate 100 true)"
expect "no command is usage" 64 "$(code "$two_nodes")"
expect "a closed port probes as free" free "$("$two_nodes" --probe 127.0.0.1 1)"

if command -v python3 >/dev/null; then
  python3 -c 'import socket, time; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True); time.sleep(60)' \
    >"$work/port" & listener=$!
  for _ in $(seq 100); do [ -s "$work/port" ] && break; sleep 0.1; done
  expect "a port that somebody listens on probes as used" used "$("$two_nodes" --probe 127.0.0.1 "$(cat "$work/port")")"
  kill $listener
fi

"$two_nodes" true 2>"$work/err"; status=$?
if [ $status = 77 ] || [ $status = 1 ]; then cat "$work/err" >&2; exit $status; fi   # not root: the script has said so

# Skips that say why.
chmod 755 "$work"
as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups env -u MANYRANKS_REQUIRE "$@"; }
cp "$two_nodes" "$work/two_nodes.sh"; chmod 755 "$work/two_nodes.sh"
expect "without root it skips" 77 "$(code as_nobody "$work/two_nodes.sh" true)"
expect "and says so" 1 "$(grep -c 'SKIPPED.*not root' "$work/out")"
expect "a required skip is a failure" 1 "$(code as_nobody env MANYRANKS_REQUIRE=multinode "$work/two_nodes.sh" true)"
mkdir "$work/bin"
for tool in bash sh id ip unshare nsenter setpriv mount awk timeout mkdir rmdir sed; do ln -s "$(command -v $tool)" "$work/bin/$tool"; done
expect "without tc it skips" 77 "$(code env -u MANYRANKS_REQUIRE PATH="$work/bin" "$two_nodes" true)"
expect "and names it" 1 "$(grep -c 'tc is missing' "$work/out")"

# Two hosts, by mpirun and by hand.
expect "mpirun sees two hosts" "hosts node0 node0 node1 node1" "$("$two_nodes" --ranks-per-node 2 "$bulk" 2>&1 | grep hosts)"
expect "hand-started ranks see theirs" "0/4 0 node0,1/4 1 node0,2/4 0 node1,3/4 1 node1," \
  "$("$two_nodes" --by-hand --ranks-per-node 2 sh -c 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK $(hostname)"' | sort | tr '\n' ',')"
expect "arguments keep their spaces" "[a b]" "$("$two_nodes" --by-hand sh -c 'echo "[$1]"' x "a b" | head -n 1)"
expect "nodes have no common shared memory" 0 "$(code "$two_nodes" --by-hand sh -c \
  'touch /dev/shm/seen-by-$RANK; sleep 1; test "$(ls /dev/shm)" = seen-by-$RANK')"
expect "the command's exit code comes back (mpirun)" 70 "$(code "$two_nodes" sh -c 'exit 70')"
expect "and by hand, of the rank that failed first" 70 "$(code "$two_nodes" --by-hand sh -c 'exit $((RANK * 70))')"

# Faults are named before anything runs.
expect "no link: not reachable" 69 "$(code "$two_nodes" --cut-after 0 true)"
expect "and says so" 1 "$(grep -c 'node1 cannot reach node0' "$work/out")"
# The rate: 100 Mb/s must be clearly slower than 300, and neither above twice its nominal rate.
slow=$("$two_nodes" --rate 100mbit "$bulk" 16777216 | awk '/mbits/ { print $2 }')
fast=$("$two_nodes" --rate 300mbit "$bulk" 16777216 | awk '/mbits/ { print $2 }')
echo "bulk transfer: $slow Mb/s at 100mbit, $fast Mb/s at 300mbit"
expect "the rates are kept" yes "$([ "${slow:-0}" -gt 0 ] && [ "$slow" -lt 200 ] && [ "$fast" -lt 600 ] && [ "$fast" -gt $((slow * 3 / 2)) ] && echo yes)"

# Nothing stays, however it ends. The marker finds processes; the inode of the network namespace finds namespaces.
remains() {
  local left=0 process
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$1" ] && left=$((left + 1))
  done
  echo $left
}
end_by() {  # signal, flags...
  local signal=$1 script; shift
  : > "$work/net"
  # A shell's background job starts with SIGINT ignored, and an ignored signal cannot be trapped: give it back.
  env --default-signal=INT "$two_nodes" "$@" sh -c "readlink /proc/self/ns/net >> $work/net; sleep 600" >/dev/null 2>&1 & script=$!
  for _ in $(seq 100); do [ "$(sort -u "$work/net" | wc -l)" -ge 2 ] && break; sleep 0.1; done
  expect "both nodes run before $signal" 2 "$(sort -u "$work/net" | wc -l)"
  kill "-$signal" $script; wait $script 2>/dev/null
  if [ "$signal" = KILL ]; then   # nobody is left to wait for the kernel
    expect "$signal leaves one folder" 1 "$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name "manyranks-two-nodes.$script.*" | wc -l)"
    for _ in $(seq 100); do [ "$(remains "$(head -n 1 "$work/net")")" = 0 ] && break; sleep 0.05; done
    "$two_nodes" --clean >/dev/null
  fi
  expect "$signal $*: no process, no namespace" "0 0" "$(remains "$(head -n 1 "$work/net")") $(remains "$(tail -n 1 "$work/net")")"
  expect "$signal $*: no folder" 0 "$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name "manyranks-two-nodes.$script.*" | wc -l)"
}
links=$(ip -o link | wc -l)
for signal in INT TERM KILL; do
  end_by $signal --ranks-per-node 2
  end_by $signal --by-hand
done
expect "no link stays on the host" "$links" "$(ip -o link | wc -l)"

# --clean keeps its hands off a run that is alive.
"$two_nodes" --by-hand sleep 3 & alive=$!
sleep 1
"$two_nodes" --clean >/dev/null
wait $alive; expect "--clean spares a living run" 0 $?

[ $failures = 0 ] || { echo "$failures check(s) failed"; exit 1; }
