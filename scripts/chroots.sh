#!/usr/bin/env bash
# Runs both commands of the README in fresh Debian systems without a CUDA toolkit, and prints a table of what was seen.
# Not part of the tests: it needs root, debootstrap, a package mirror, 8 GB for each system, and an hour or two for each row.
#
#   ./scripts/chroots.sh                                        Debian 12 and 13, as root and as a user, tour and test
#   ./scripts/chroots.sh --suite trixie --user root             one system, one user
#   ./scripts/chroots.sh --command tour                         one command: tour or test
#   ./scripts/chroots.sh --command "test -L smoke"              further words go to the script
#   ./scripts/chroots.sh --shell trixie                         a root shell in there
#   --folder DIR    where the systems are kept (default /var/tmp/manyranks-chroots); made if missing, reused if there
#   --commit REV    what is cloned (default HEAD: uncommitted changes are not in it)
#   --again         keep the clone, its build tree and the compiler cache of the last run: quick, but its minutes mean little
#   --remove        remove the systems named by --suite, and end
#
# A system has minbase, git and certificates; all else is for setup.sh to bring (root), or was brought by root before (user, who has no sudo).
# The settings of this machine for apt (Acquire::*), pip (pip.conf, PIP_*), proxies and certificates hold in there as well.
# Everything runs in a mount namespace and a process namespace of its own: mounts and processes end with this script, however it ends.
# MANYRANKS_JOBS says how many compilers run at once, as everywhere.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=/var/tmp/manyranks-chroots
commit=HEAD
suites=()
users=()
commands=()
again=no
remove=no
shell=""
say()  { printf '\033[1m[chroots]\033[0m %s\n' "$*"; }
fail() { printf '[chroots] error: %s\n' "$*" >&2; exit 1; }
original=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --suite)   suites+=("${2:?a suite}"); shift ;;
    --user)    users+=("${2:?root or user}"); shift ;;
    --command) commands+=("${2:?tour or test}"); shift ;;
    --folder)  folder=${2:?a folder}; shift ;;
    --commit)  commit=${2:?a commit}; shift ;;
    --shell)   shell=${2:?a suite}; suites+=("$2"); shift ;;
    --again)   again=yes ;;
    --remove)  remove=yes ;;
    -h|--help) sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) printf '[chroots] unknown flag %s; see %s --help\n' "$1" "$0" >&2; exit 64 ;;
  esac
  shift
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
[ ${#users[@]} -gt 0 ] || users=(root user)
[ ${#commands[@]} -gt 0 ] || commands=(tour test)
for suite in "${suites[@]}"; do
  [[ $suite =~ ^[a-z]+$ ]] || { echo "[chroots] --suite wants a name such as trixie, not '$suite'" >&2; exit 64; }
done
for user in "${users[@]}"; do
  [[ $user =~ ^(root|user)$ ]] || { echo "[chroots] --user wants root or user, not '$user'" >&2; exit 64; }
done
for command in "${commands[@]}"; do
  [[ $command =~ ^(tour|test)( |$) ]] || { echo "[chroots] --command wants tour or test, not '$command'" >&2; exit 64; }
done
[ "$(id -u)" = 0 ] || fail "chroots and mounts need root."
commit=$(git rev-parse --verify --short "$commit^{commit}")
mkdir -p "$folder/logs"
folder=$(realpath "$folder")

if [ $remove = yes ]; then
  for suite in "${suites[@]}"; do
    # Mounts of a run live in its own namespace, so there are none here; if there are, they are somebody else's, and not to be emptied.
    ! grep -q " ${folder}/${suite}[/ ]" /proc/self/mountinfo || fail "$folder/$suite has mounts: umount them first."
    rm -rf --one-file-system "${folder:?}/$suite"
  done
  exit 0
fi

if [ -z "${MANYRANKS_CHROOTS_INSIDE:-}" ]; then   # once more, in namespaces of our own
  command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
  # unshare itself is deaf to TERM while it waits; when it is killed, the kernel ends what it started (--kill-child).
  MANYRANKS_CHROOTS_INSIDE=yes unshare --mount --pid --fork --kill-child --mount-proc --propagation private "$0" "${original[@]}" <&0 &
  child=$!
  trap 'kill -KILL $child' INT TERM HUP
  status=0
  wait $child || status=$?
  exit $status
fi

mirror() {  # of this machine's apt, else debootstrap's own choice
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 2>/dev/null | head -n 1
}

make_system() {  # make_system SUITE
  local root=$folder/$1 from
  if [ ! -e "$root/.made" ]; then
    say "debootstrap $1"
    # What an interrupted run left is not taken over.
    [ ! -e "$root" ] || rm -rf --one-file-system "${root:?}"
    from=$(mirror)
    debootstrap --variant=minbase --include=ca-certificates "$1" "$root" ${from:+"$from"} > "$folder/logs/$1-debootstrap.log" 2>&1 ||
      { tail -n 20 "$folder/logs/$1-debootstrap.log" >&2; fail "debootstrap $1 failed (above: its last lines)"; }
    touch "$root/.made"
  fi
  # What this machine's apt, pip and certificates need to reach the package indexes, the systems need, too.
  apt-config dump | grep '^Acquire::' > "$root/etc/apt/apt.conf.d/99host" || true
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  mkdir -p "$root/usr/local/share/ca-certificates"
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp -L {} "$root/usr/local/share/ca-certificates/" \; 2>/dev/null || true
  if [ -e /etc/pip.conf ]; then cp -L /etc/pip.conf "$root/etc/"; fi
  if [ -d "${PIP_FIND_LINKS:-}" ]; then mkdir -p "$root$PIP_FIND_LINKS"; cp -a "$PIP_FIND_LINKS/." "$root$PIP_FIND_LINKS/"; fi
  mount --bind "$root" "$root"   # so that it can become the root of a mount namespace
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o size=75%,mode=1777 shm "$root/dev/shm"
  inside "$1" root update-ca-certificates > /dev/null 2>&1
  inside "$1" root apt-get update -qq
  inside "$1" root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends git > /dev/null 2>&1
  grep -q '^user:' "$root/etc/passwd" || inside "$1" root useradd --create-home --shell /bin/bash user
}

inside() {  # inside SUITE USER WORDS...: in the clean environment of a log-in, with what pip, proxies and certificates are told here
  local suite=$1 user=$2 home=/root name settings=(); shift 2
  [ "$user" = root ] || home=/home/$user
  while read -r name; do settings+=("$name=${!name}"); done < <(compgen -e |
    grep -E '^(PIP_|UV_|SSL_CERT_|CURL_CA_BUNDLE$|REQUESTS_CA_BUNDLE$|https?_proxy$|HTTPS?_PROXY$|no_proxy$|NO_PROXY$|MANYRANKS_JOBS$)')
  # Not a plain chroot: two_nodes.sh enters mount namespaces, and who does that gets the namespace's own root, so this must be it.
  # shellcheck disable=SC2016
  unshare --mount --propagation private bash -c '
    cd "$0" && mkdir -p .host && pivot_root . .host && umount -l /.host && exec chroot --userspec="$1" / "${@:2}"' \
    "$folder/$suite" "$user" /usr/bin/env -i HOME="$home" USER="$user" LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${settings[@]}" "$@"
}

clone() {  # clone SUITE USER: always in the same place, so that --again finds the compiler's results
  local place=$folder/$1/srv/$2
  [ $again = yes ] || { rm -rf --one-file-system "${place:?}"; inside "$1" root rm -rf /root/.cache/ccache /home/user/.cache/ccache; }
  if [ -e "$place/manyranks/.git" ]; then
    git -C "$place/manyranks" fetch -q "$PWD" "$commit_full"
    git -C "$place/manyranks" checkout -q --force --detach "$commit_full"
  else
    mkdir -p "$place"
    git clone -q --no-local --no-checkout "$PWD" "$place/manyranks"
    git -C "$place/manyranks" checkout -q --detach "$commit_full"
  fi
  inside "$1" root chown -R "$2" "/srv/$2"
}

minutes() { awk -v s="$1" 'BEGIN { printf "%.1f", s / 60 }'; }

run() {  # run SUITE USER: all commands, one row
  local suite=$1 user=$2 root=$folder/$1 log began status setup tour=- tests=- total=0 command words
  local tree=/srv/$user/manyranks
  clone "$suite" "$user"
  if [ "$user" = user ]; then   # an administrator was here
    inside "$suite" root bash -c "cd $tree && cat scripts/packages-debian*.txt | grep -v '^#' |
      while read -r p; do apt-cache show \"\$p\" >/dev/null 2>&1 && echo \"\$p\"; done |
      DEBIAN_FRONTEND=noninteractive xargs apt-get install -y -qq --no-install-recommends" > "$folder/logs/$suite-packages.log" 2>&1
  fi
  log=$folder/logs/$suite-$user-setup.log
  say "$suite, $user: setup.sh (log: $log)"
  began=$SECONDS; status=0
  # In the background: bash obeys a signal only when its foreground child has ended. When this process ends, all others of its namespace do.
  inside "$suite" "$user" bash -c "cd $tree && ./scripts/setup.sh" > "$log" 2>&1 < /dev/null &
  wait $! || status=$?
  setup="$([ $status = 0 ] && echo ok || echo "exit $status"), $(minutes $((SECONDS - began))) min"
  total=$((total + SECONDS - began))
  for command in "${commands[@]}"; do
    read -ra words <<< "$command"
    log=$folder/logs/$suite-$user-${words[0]}.log
    say "$suite, $user: ${words[0]}.sh ${words[*]:1} (log: $log)"
    began=$SECONDS; status=0
    rm -f "$root$tree/build/junit.xml"   # of an earlier run
    inside "$suite" "$user" bash -c "cd $tree && exec ./scripts/${words[0]}.sh \"\$@\"" bash "${words[@]:1}" > "$log" 2>&1 < /dev/null &
    wait $! || status=$?
    total=$((total + SECONDS - began))
    case ${words[0]} in
      tour) tour="$([ $status = 0 ] && echo ok || echo "exit $status"), $(minutes $((SECONDS - began))) min" ;;
      test) tests="exit $status, $(counts "$root$tree/build/junit.xml"), $(minutes $((SECONDS - began))) min" ;;
    esac
  done
  rows+=("| $(version "$suite" "$user") | $user | $setup | $tour | $tests | $(minutes $total) |")
}

counts() {  # counts JUNIT: passed / failed / skipped
  [ -e "$1" ] || { echo "no tests ran"; return; }
  local all failed skipped
  all=$(grep -c '<testcase ' "$1"); failed=$(grep -c '<testcase .*status="fail"' "$1"); skipped=$(grep -c '<testcase .*status="notrun"' "$1")
  echo "$((all - failed - skipped)) passed / $failed failed / $skipped skipped"
}

version() {  # version SUITE USER: four cells
  inside "$1" "$2" bash -c '
    . /etc/os-release
    echo "$NAME $VERSION_ID | GCC $(g++ -dumpfullversion) | $(mpirun --version | sed -n "1s/.*(\(.*\)) /\1 /p") | $(python3 --version | cut -d" " -f2)"' 2>&1
}

trap 'exit 130' INT
trap 'exit 143' TERM HUP
commit_full=$(git rev-parse "$commit")
rows=()
for suite in "${suites[@]}"; do
  make_system "$suite"
  if [ -n "$shell" ]; then inside "$suite" root bash -i; exit; fi
  for user in "${users[@]}"; do run "$suite" "$user"; done
done
say "commit $commit, $(nproc) core(s), MANYRANKS_JOBS=${MANYRANKS_JOBS:-$(nproc)}, $(date -u +%F)"
echo "| distribution | compiler | MPI | Python | user | set-up | tour | tests | minutes |"
echo "|---|---|---|---|---|---|---|---|---|"
printf '%s\n' "${rows[@]}"
! printf '%s\n' "${rows[@]}" | grep -q 'exit [1-9]'
