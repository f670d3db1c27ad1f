#!/usr/bin/env bash
# Two hosts on one machine: node0 and node1, each with a network, host name, /etc/hosts and /dev/shm of its own,
# joined by one link of the rate you choose. Runs any command over both.
#
#   ./scripts/two_nodes.sh [flags] [--] COMMAND [ARGUMENTS...]
#
#   --ranks-per-node N   ranks on each node (default 1)
#   --rate RATE          link speed in each direction: 100mbit, 1gbit, 2.5gbit (default: as fast as the kernel copies)
#   --by-hand            start each rank with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT
#                        set, as one would type on each node; otherwise through Open MPI's mpirun
#   --port P             MASTER_PORT (default 29500)
#   --cut-after S        cut the link S seconds after the start; 0: before it
#   --clean              remove what runs that were killed with -9 left behind, and end
#   --probe HOST PORT    is HOST reachable, and PORT free there? (also useful between real nodes)
#
#   ./scripts/two_nodes.sh hostname
#   ./scripts/two_nodes.sh --ranks-per-node 2 --rate 1gbit build/02_message_passing/02_point_to_point
#
# Nothing stays behind: all of it lives in a process namespace whose first process dies with this script, whatever ends
# it, and the kernel then takes the processes, the link and the mounts away. Only kill -9 leaves one empty folder in
# /tmp (--clean). Two runs do not see each other: each has its own network, so that addresses and ports cannot clash.
#
# Exit codes: the command's own, or 64 usage, 69 not reachable, port in use or no Open MPI, 77 skipped: not root, a tool
# or kernel feature is missing (1 instead if MANYRANKS_REQUIRE names root or multinode), 130/143 interrupted.
set -uo pipefail
export LC_ALL=C

ranks_per_node=1 rate="" by_hand=no port=29500 cut_after="" clean=no
address0=10.77.0.1 address1=10.77.0.2   # private to the run
folder_prefix="${TMPDIR:-/tmp}/manyranks-two-nodes"

fault() { printf 'two_nodes: error: %s; try: %s [exit %d]\n' "$2" "$3" "$1" >&2; exit "$1"; }
skip() {
  case ",${MANYRANKS_REQUIRE:-}," in
    *,root,*|*,multinode,*) printf 'two_nodes: error: MANYRANKS_REQUIRE forbids this skip: %s\n' "$1" >&2; exit 1 ;;
  esac
  printf 'two_nodes: SKIPPED (multinode): %s\n' "$1" >&2
  exit 77
}

# Prints free (the host answers, nobody listens), used, or unreachable. A refused connection is an answer, so this needs
# no ping and no listener.
probe() {
  local text
  text=$(timeout 3 bash -c 'exec 3<>"/dev/tcp/$1/$2"' probe "$1" "$2" 2>&1) && { echo used; return; }
  case "$text" in *refused*) echo free ;; *) echo unreachable ;; esac
}

number() { case "$2" in ''|*[!0-9]*) fault 64 "$1 wants a whole number, not '$2'" "--help" ;; esac; }
value()  { [ "$2" -ge 2 ] || fault 64 "$1 wants a value" "--help"; }

command_line=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --ranks-per-node) value "$1" $#; ranks_per_node=$2; number "$1" "$2"; shift 2 ;;
    --rate)           value "$1" $#; rate=$2; shift 2 ;;
    --port)           value "$1" $#; port=$2; number "$1" "$2"; shift 2 ;;
    --cut-after)      value "$1" $#; cut_after=$2; number "$1" "$2"; shift 2 ;;
    --by-hand)        by_hand=yes; shift ;;
    --clean)          clean=yes; shift ;;
    --probe)          [ $# -eq 3 ] || fault 64 "--probe wants HOST PORT" "--help"
                      answer=$(probe "$2" "$3"); echo "$answer"; [ "$answer" = free ]; exit $(( $? ? 69 : 0 )) ;;
    -h|--help)        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --)               shift; break ;;
    -*)               fault 64 "unknown flag $1" "--help" ;;
    *)                break ;;
  esac
done
[ "$ranks_per_node" -ge 1 ] || fault 64 "--ranks-per-node must be at least 1" "--help"
{ [ "$port" -ge 1 ] && [ "$port" -le 65535 ]; } || fault 64 "--port $port is no port" "a number from 1 to 65535"

rate_bits=0
if [ -n "$rate" ]; then
  rate_bits=$(printf '%s\n' "$rate" | awk '/^[0-9]+(\.[0-9]+)?[kmg]bit$/ { u = substr($0, length($0) - 3, 1); v = $0 + 0
    printf "%.0f", v * (u == "k" ? 1e3 : u == "m" ? 1e6 : 1e9) }')
  { [ -n "$rate_bits" ] && [ "$rate_bits" -ge 1000 ]; } || fault 64 "--rate '$rate' is no rate" "100mbit or 1gbit"
fi

started() { awk '{ sub(/.*\) /, ""); print $20 }' "/proc/$1/stat" 2>/dev/null; }   # start time: a pid alone may be reused

remove_stale() {
  local folder owner
  for folder in "$folder_prefix".*.*; do
    [ -d "$folder" ] || continue
    owner=${folder#"$folder_prefix".}
    [ "$(started "${owner%.*}")" = "${owner#*.}" ] && continue   # its run is alive
    rmdir "$folder" && echo "two_nodes: removed $folder, left by a run that was killed"
  done
}

# --- inside: process 1 of a process namespace of its own ------------------------------------------------------------
node() {  # node N COMMAND...: runs it on that node, in this working folder
  local holder=$1; shift
  holder=$(cat "$scratch/holder$holder") || return 1
  nsenter -t "$holder" --net --uts --ipc --mount -- sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

make_node() {  # a process that does nothing but keep node $1's namespaces
  unshare --net --uts --ipc --mount sh -c '
    echo "node$0" > /proc/sys/kernel/hostname &&
    mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /dev/shm && mount --bind "$1/hosts" /etc/hosts &&
    ip link set lo up && echo $$ > "$1/holder$0" && exec sleep infinity' "$1" "$scratch" &
  for _ in $(seq 100); do [ -s "$scratch/holder$1" ] && return; kill -0 $! 2>/dev/null || break; sleep 0.05; done
  skip "the kernel refuses a network, host name or mount namespace here (a container without CAP_SYS_ADMIN?)"
}

make_link() {
  ip link add eth0 netns "$(cat "$scratch/holder0")" type veth peer name eth0 netns "$(cat "$scratch/holder1")" ||
    skip "the kernel has no veth pairs"
  local n address
  for n in 0 1; do
    address="address$n"
    node $n ip address add "${!address}/24" dev eth0 && node $n ip link set eth0 mtu 9000 up || fault 69 "cannot configure eth0 of node$n" "the message above"
    # As a network for computing is set up: jumbo frames (a frame costs the same core time, large or small), no delayed
    # acknowledgements (40 ms each), no slow start after every pause.
    node $n ip route change 10.77.0.0/24 dev eth0 proto kernel scope link src "${!address}" quickack 1 &&
      node $n sh -c 'echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle' || fault 69 "cannot configure TCP of node$n" "the message above"
    [ "$rate_bits" -gt 0 ] || continue
    # The bucket: 0.2 ms of the rate, but two full frames at least. What fits in it passes unshaped, so keep it small.
    local burst=$(( rate_bits / 40000 )); [ "$burst" -ge 18200 ] || burst=18200
    node $n tc qdisc add dev eth0 root tbf rate "${rate_bits}bit" burst "$burst" latency 100ms || skip "the kernel has no tbf to shape the link with"
  done
}

check_link() {
  case "$(node 1 bash "$self" --probe "$address0" "$port")" in
    free) ;;
    used) fault 69 "port $port of node0 ($address0) is in use" "another --port" ;;
    *)    fault 69 "node1 cannot reach node0 ($address0:$port)" "ip -s link inside the nodes; a firewall that covers new network namespaces" ;;
  esac
}

run_by_mpirun() {
  mpirun --version 2>/dev/null | grep -q "Open MPI\|OpenRTE" || fault 69 "mpirun is missing or not Open MPI's" "--by-hand, or ./scripts/setup.sh"
  # What ssh would be on a cluster: host name first, then the command for the shell over there.
  printf '#!/bin/sh\nhost=$1; shift\nexec nsenter -t "$(cat "%s/holder${host#node}")" --net --uts --ipc --mount -- sh -c "$*"\n' "$scratch" > "$scratch/agent"
  chmod +x "$scratch/agent"
  # Shared memory inside a node, TCP between nodes. No binding: each node believes that all cores are its own.
  node 0 mpirun --allow-run-as-root --oversubscribe --bind-to none -np $(( 2 * ranks_per_node )) \
    --host "node0:$ranks_per_node,node1:$ranks_per_node" --mca plm_rsh_agent "$scratch/agent" \
    --mca oob_tcp_if_include eth0 --mca btl self,vader,tcp --mca btl_tcp_if_include eth0 "$@"
}

run_by_hand() {
  local n l rank status=0 one ended
  declare -A alive   # by process id
  for n in 0 1; do
    for l in $(seq 0 $(( ranks_per_node - 1 ))); do
      rank=$(( n * ranks_per_node + l ))
      node $n env RANK=$rank WORLD_SIZE=$(( 2 * ranks_per_node )) LOCAL_RANK="$l" LOCAL_WORLD_SIZE="$ranks_per_node" \
        MASTER_ADDR=$address0 MASTER_PORT="$port" "$@" &
      alive[$!]=1
    done
  done
  while [ ${#alive[@]} -gt 0 ]; do
    wait -n -p ended "${!alive[@]}"; one=$?
    unset "alive[$ended]"
    if [ "$one" -ne 0 ] && [ "$status" -eq 0 ]; then
      status=$one   # the first failure counts; its peers get time to notice it by themselves
      ( sleep 15; kill -KILL "${!alive[@]}" 2>/dev/null ) &
    fi
  done
  return $status
}

if [ -n "${TWO_NODES_SCRATCH:-}" ]; then
  self=$(readlink -f "$0") scratch=$TWO_NODES_SCRATCH
  mount -t tmpfs tmpfs "$scratch" || skip "cannot mount a tmpfs"
  # Dual-stack sockets ask for the name of ::ffff:ADDRESS.
  printf '127.0.0.1 localhost\n%s node0\n%s node1\n::ffff:%s node0\n::ffff:%s node1\n' $address0 $address1 $address0 $address1 > "$scratch/hosts"
  unset TWO_NODES_SCRATCH
  make_node 0; make_node 1
  make_link
  [ "$cut_after" = 0 ] && node 1 ip link set eth0 down
  check_link
  [ -n "$cut_after" ] && ( sleep "$cut_after"; node 1 ip link set eth0 down; echo "two_nodes: link cut" >&2 ) &
  # Session folders of concurrent runs would clash: host names and process ids are the same in each.
  export TMPDIR=$scratch GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
  if [ $by_hand = yes ]; then run_by_hand "$@"; else run_by_mpirun "$@"; fi
  exit $?
fi

# --- outside ------------------------------------------------------------------------------------------------------
if [ $clean = yes ]; then remove_stale; exit 0; fi
[ $# -ge 1 ] || fault 64 "no command given" "--help"
[ "$(id -u)" = 0 ] || skip "not root: network namespaces need it (sudo $0 ...)"
for tool in ip tc unshare nsenter setpriv mount awk timeout; do
  command -v $tool >/dev/null || skip "$tool is missing (apt-get install iproute2 util-linux mount)"
done

scratch="$folder_prefix.$$.$(started $$)"
mkdir -m 700 "$scratch" || fault 74 "cannot make $scratch" "--clean"
inside=""
end() {  # unshare takes process 1 of the namespace with it, and that everything else; wait until it is so
  local first=""
  if [ -n "$inside" ]; then
    first=$(cat "/proc/$inside/task/$inside/children" 2>/dev/null)
    kill -KILL "$inside" 2>/dev/null
    wait "$inside" 2>/dev/null   # takes the shell's remark about it
  fi
  [ -n "$first" ] && for _ in $(seq 100); do [ -d "/proc/${first% }" ] || break; sleep 0.05; done
  rmdir "$scratch" 2>/dev/null
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
unshare --pid --net --fork true 2>/dev/null || skip "the kernel refuses new namespaces here (a container without CAP_SYS_ADMIN?)"
TWO_NODES_SCRATCH=$scratch setpriv --pdeathsig KILL unshare --pid --mount --fork --kill-child --mount-proc bash "$0" "${command_line[@]}" <&0 &
inside=$!
wait $inside
status=$?
inside=""
exit $status
