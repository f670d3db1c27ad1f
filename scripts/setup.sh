#!/usr/bin/env bash
# Installs everything manyranks builds and runs with: system packages, a .venv, LibTorch.
# Idempotent: when nothing changed it returns in under 2 s and touches no network.
#
#   ./scripts/setup.sh              flavour by what is found: CUDA where there is a toolkit, else CPU
#   ./scripts/setup.sh --cpu        CPU-only LibTorch (about 0.6 GB to download, no CUDA toolkit needed)
#   ./scripts/setup.sh --cuda       CUDA LibTorch (about 3 GB to download, needs a toolkit)
#   ./scripts/setup.sh --rivals     also what the Python rivals need (import torch, torchvision)
#   ./scripts/setup.sh --tests      also what only the tests need (clang's fuzzer, a browser); test.sh asks for it
#   MANYRANKS_LIBTORCH=DIR ./scripts/setup.sh     take this LibTorch instead of the wheel
set -euo pipefail
cd "$(dirname "$0")/.."

supported_torch="2.14.0 2.14.1"   # what we build against; others are refused
flavour=auto
rivals=no
tests=no
say()  { printf '\033[1m[setup]\033[0m %s\n' "$*"; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

for argument in "$@"; do
  case "$argument" in
    --cpu)    flavour=cpu ;;
    --cuda)   flavour=cuda ;;
    --rivals) rivals=yes ;;
    --tests)  tests=yes ;;
    -h|--help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) printf '[setup] unknown flag %s; see %s --help\n' "$argument" "$0" >&2; exit 64 ;;
  esac
done

find_nvcc() { command -v nvcc || { [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] && echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; } || true; }
# What was once chosen stays (flavour, rivals): tour.sh and test.sh call this without flags.
if [ "$flavour" = auto ] && [ -e .venv/.flavour ]; then flavour=$(cat .venv/.flavour); fi
if [ "$flavour" = auto ]; then
  if [ -n "$(find_nvcc)" ]; then flavour=cuda; else flavour=cpu; fi
fi
if [ "$flavour" = cuda ] && [ -z "$(find_nvcc)" ]; then
  fail "--cuda needs a CUDA toolkit and none was found (no nvcc on PATH, none in CUDA_HOME). Install CUDA 13.0, or use --cpu."
fi
[ -e .venv/.rivals ] && rivals=yes
[ -e .venv/.tests ] && tests=yes

check_given_libtorch() {  # MANYRANKS_LIBTORCH: must be a LibTorch that we build against
  [ -d "$MANYRANKS_LIBTORCH/include/torch" ] || [ -d "$MANYRANKS_LIBTORCH/include/ATen" ] ||
    fail "MANYRANKS_LIBTORCH=$MANYRANKS_LIBTORCH has no include/torch: give the folder that holds include/ and lib/."
  local header="$MANYRANKS_LIBTORCH/include/torch/headeronly/version.h" version="" part
  for part in MAJOR MINOR PATCH; do
    version="$version.$(sed -n "s/^#define TORCH_VERSION_$part \([0-9]*\)/\1/p" "$header" 2>/dev/null)"
  done
  version=${version#.}
  for known in $supported_torch; do [ "$version" = "$known" ] && return 0; done
  fail "MANYRANKS_LIBTORCH=$MANYRANKS_LIBTORCH is LibTorch '$version'. manyranks builds against: $supported_torch."
}
libtorch=$flavour
if [ -n "${MANYRANKS_LIBTORCH:-}" ]; then check_given_libtorch; libtorch=$MANYRANKS_LIBTORCH; fi

# The stamp is a digest of all that decides what is installed.
wanted=$(cat scripts/setup.sh scripts/requirements*.txt scripts/packages-debian*.txt <(echo "$libtorch $rivals $tests") | sha256sum | cut -d' ' -f1)
if [ "$(cat .venv/.stamp 2>/dev/null)" = "$wanted" ] && [ -x .venv/bin/cmake ] && command -v mpicxx >/dev/null; then
  say "up to date (LibTorch: $libtorch, rivals: $rivals, tests: $tests)"
  exit 0
fi

missing_packages() {  # missing_packages LIST
  grep -v '^#' "$1" | while read -r package; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || printf '%s ' "$package"
  done
}
conda_line="conda create -n manyranks -c conda-forge cxx-compiler openmpi-mpicxx cli11 fmt nlohmann_json gtest benchmark libjpeg-turbo zlib ccache"
as_root=""
find_root() {  # sets as_root to what makes a command root's, or fails
  [ "$(id -u)" = 0 ] && return 0
  as_root=sudo
  command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }
}
apt_install() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/tmp/manyranks-apt.$$ 2>&1; }
install_packages() {
  local list missing=""
  if ! command -v apt-get >/dev/null; then
    command -v mpicxx >/dev/null && command -v g++ >/dev/null && return 0   # not Debian: trust what is there
    fail "this is not Debian or Ubuntu, and mpicxx or g++ is missing. Load them with your cluster's modules
         (module load gcc openmpi), or without root:
           $conda_line
           conda activate manyranks, then run this again."
  fi
  for list in "$@"; do missing+=$(missing_packages "$list"); done
  [ -z "$missing" ] && return 0
  if ! find_root; then
    if command -v mpicxx >/dev/null && command -v g++ >/dev/null; then   # from conda or modules: dpkg does not know them
      say "not installed by apt, and no root here: $missing"
      say "going on with what PATH has (mpicxx: $(command -v mpicxx)); CMake says what it cannot find"
      return 0
    else
      fail "missing system packages, and no root here. Hand this to an administrator:
           apt-get update && apt-get install -y $missing
         or, without root: module load gcc openmpi (if your cluster has modules), or
           $conda_line
           conda activate manyranks, then run this again."
    fi
  fi
  say "system packages: $missing"
  $as_root apt-get update -qq || fail "apt-get update failed: check the network and the sources of apt, then run this again."
  local package known=""
  for package in $missing; do   # Ubuntu has no chromium to install with apt: the one test that wants it is skipped there, and says so
    if grep -qx "$package" scripts/packages-debian-test.txt && ! [[ $(apt-cache policy "$package") =~ Candidate:\ [^\(] ]]; then
      say "$package is not in this distribution: the tests that need it will be skipped"
    else known+="$package "; fi
  done
  missing=$known
  # shellcheck disable=SC2086
  [ -z "$missing" ] || apt_install $missing ||
    { tail -n 20 /tmp/manyranks-apt.$$ >&2; fail "apt-get install failed (above: its last lines). Mend that, then run this again."; }
  rm -f /tmp/manyranks-apt.$$
}
lists=(scripts/packages-debian.txt)
[ "$tests" = yes ] && lists+=(scripts/packages-debian-test.txt)
install_packages "${lists[@]}"

# GCC's plugin headers take a third off the time of a build (common/cmake/EagerTemplates.cmake, which also says with which versions of GCC);
# all works without them, so nothing here is fatal.
install_plugin_headers() {
  c++ -v 2>&1 | grep -q '^gcc version' && command -v apt-get >/dev/null || return 0
  sed -n 's/^set(MANYRANKS_EAGER_TEMPLATES_PROVEN \(.*\)).*/\1/p' common/cmake/EagerTemplates.cmake |
    grep -qwF "$(c++ -dumpfullversion | cut -d. -f1,2)" || return 0
  [ ! -e "$(c++ -print-file-name=plugin)/include/gcc-plugin.h" ] && find_root || return 0
  local package
  package=gcc-$(c++ -dumpversion | cut -d. -f1)-plugin-dev
  say "system packages: $package"
  apt_install "$package" || { $as_root apt-get update -qq && apt_install "$package"; } || say "$package could not be had: compiling will take longer"
  rm -f /tmp/manyranks-apt.$$
}
install_plugin_headers

make_venv() {
  [ -x .venv/bin/python ] && .venv/bin/python -c 'import pip' 2>/dev/null && return 0
  say "making .venv"
  local python
  for python in "${MANYRANKS_PYTHON:-}" /usr/bin/python3 python3; do
    [ -n "$python" ] || continue
    "$python" -c 'import sys, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null || continue
    "$python" -m venv .venv && return 0
  done
  fail "no Python 3.10 to 3.14 with ensurepip found. Install python3-venv, or set MANYRANKS_PYTHON to a Python that has it."
}
make_venv

# uv fetches and unpacks in parallel: a third of pip's time for LibTorch. It does not read pip's settings, so where pip was told of an index
# (a mirror, PIP_NO_INDEX), and where uv cannot be had or fails, pip does the work, and pip's message is the one that is shown.
uv_version=0.13.8
pip="python -m pip install --no-compile --disable-pip-version-check"
get_uv() {
  .venv/bin/python -m pip config list 2>/dev/null | grep -Eq '[.:](no-index|index-url|extra-index-url)=' && return 1
  # shellcheck disable=SC2086
  .venv/bin/uv --version 2>/dev/null | grep -q " $uv_version" || .venv/bin/$pip --quiet "uv==$uv_version" >/dev/null 2>&1
}
uv_install() {  # what pip is told by environment variables, uv is told, too
  local settings=()
  [ -n "${PIP_CERT:-}" ] && settings+=("SSL_CERT_FILE=$PIP_CERT")
  [ -n "${PIP_FIND_LINKS:-}" ] && settings+=("UV_FIND_LINKS=$PIP_FIND_LINKS")
  env "${settings[@]}" .venv/bin/uv pip install --python .venv/bin/python "$@"
}
uv=no
if get_uv; then uv=yes; fi
pip_install() {  # progress bars on a terminal, silence in a log, and one clear line when it fails
  local quiet=--quiet; [ -t 1 ] && quiet=
  # shellcheck disable=SC2086
  if [ $uv = yes ]; then uv_install $quiet "$@" && return 0; say "uv did not manage (above): trying pip"; fi
  # shellcheck disable=SC2086
  .venv/bin/$pip $quiet "$@" ||
    fail "pip install $* failed. Is the package index reachable? On an air-gapped machine: pip download -d wheels -r scripts/requirements*.txt
         on one with a network, copy wheels/ here, and set PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels."
}
say "build tools and plotting"
pip_install -r scripts/requirements.txt

case "$libtorch" in
  cpu)  say "LibTorch, CPU-only (about 0.6 GB)";  pip_install --no-deps -r scripts/requirements-cpu.txt ;;
  cuda) say "LibTorch with CUDA (about 3 GB)";    pip_install -r scripts/requirements-cuda.txt ;;
  *)    say "LibTorch: $MANYRANKS_LIBTORCH, as asked" ;;
esac
if [ "$rivals" = yes ]; then
  say "the Python rivals"
  pip_install -r scripts/requirements-rivals.txt
  touch .venv/.rivals
fi
if [ "$tests" = yes ]; then touch .venv/.tests; fi
echo "$flavour" > .venv/.flavour
echo "$wanted" > .venv/.stamp
say "done (LibTorch: $libtorch, rivals: $rivals, tests: $tests)"
