#!/usr/bin/env bash
# Cross-compiles for aarch64 against the aarch64 wheel of LibTorch, and runs under qemu-user what can run there.
# Not part of the tests: it downloads 0.7 GB and compiles for half an hour. Needs (Debian): g++-aarch64-linux-gnu qemu-user-static
#
#   ./scripts/aarch64.sh                 the unit tests without LibTorch, the library, and one lesson of each chapter; runs them on one rank
#   ./scripts/aarch64.sh --base          only what needs no LibTorch: a few minutes
#   --folder DIR                         where all of it is kept (default /var/tmp/manyranks-aarch64); what is there is reused
#
# arm64 packages come through an apt state of their own in that folder: this machine's dpkg and apt never hear of the architecture.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=/var/tmp/manyranks-aarch64
base=no
say()  { printf '\033[1m[aarch64]\033[0m %s\n' "$*"; }
fail() { printf '[aarch64] error: %s\n' "$*" >&2; exit 1; }
while [ $# -gt 0 ]; do
  case "$1" in
    --base)    base=yes ;;
    --folder)  folder=${2:?a folder}; shift ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) printf '[aarch64] unknown flag %s; see %s --help\n' "$1" "$0" >&2; exit 64 ;;
  esac
  shift
done
mkdir -p "$folder"
folder=$(realpath "$folder")
sysroot=$folder/sysroot
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static dpkg-deb; do
  command -v $tool >/dev/null || fail "$tool is missing: apt-get install g++-aarch64-linux-gnu qemu-user-static"
done
export PATH="$PWD/.venv/bin:$PATH"
command -v ninja >/dev/null || fail "no ninja: run ./scripts/setup.sh first (its CMake and Ninja are used)"

# --- a sysroot of arm64 packages: apt resolves them in a state of its own, in which nothing is installed ---------------
if [ ! -e "$sysroot/.made" ]; then
  say "arm64 packages into $sysroot"
  mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$sysroot"
  : > "$folder/apt/status"
  private_apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o Dir::State="$folder/apt" \
      -o Dir::State::lists="$folder/apt/lists" -o Dir::State::status="$folder/apt/status" -o Dir::Cache="$folder/apt" \
      -o Dir::Cache::archives="$folder/apt/archives" -o APT::Install-Recommends=false -o Debug::NoLocking=true \
      -o DPkg::Post-Invoke= -o APT::Update::Post-Invoke= -o APT::Keep-Downloaded-Packages=true "$@"
  }
  private_apt update
  version=$(aarch64-linux-gnu-g++ -dumpversion | cut -d. -f1)
  private_apt install -y --download-only libc6-dev "libstdc++-$version-dev" libbenchmark-dev libcli11-dev libfmt-dev libgtest-dev libjpeg-dev \
    libopenmpi-dev nlohmann-json3-dev zlib1g-dev
  for package in "$folder"/apt/archives/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
  # Absolute links would lead out of the sysroot.
  find "$sysroot" -type l -lname '/*' | while read -r link; do ln -sfr "$sysroot$(readlink "$link")" "$link"; done
  touch "$sysroot/.made"
fi

# --- LibTorch ---------------------------------------------------------------------------------------------------------
torch=$folder/wheel/torch
version=$(sed -n 's/^torch==//p' scripts/requirements-cpu.txt)
if [ ! -e "$torch/lib/libtorch_cpu.so" ]; then
  say "LibTorch $version for aarch64"
  python -m pip download -q -d "$folder/wheels" --platform manylinux_2_28_aarch64 --python-version 3.11 --only-binary=:all: --no-deps "torch==$version"
  python -m zipfile -e "$folder"/wheels/torch-"$version"-*aarch64.whl "$folder/wheel"
fi

# --- build --------------------------------------------------------------------------------------------------------------
mpi=$sysroot/usr/lib/aarch64-linux-gnu/openmpi
cat > "$folder/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT "$sysroot")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64-static;-L;$sysroot")
# Libraries of LibTorch's libraries are not here (CUDA's); alternatives (BLAS for Open MPI's tools) are links that packages make when installed.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--allow-shlib-undefined")
END
# What CMake asks Open MPI's compiler wrapper for; arm64's own cannot run here.
cat > "$folder/mpicxx" <<END
#!/bin/sh
case "\$1" in
  -showme:compile) echo "-I$mpi/include" ;;
  -showme:link)    echo "-L$mpi/lib -lmpi" ;;
  -showme:incdirs) echo "$mpi/include" ;;
  -showme:libdirs) echo "$mpi/lib" ;;
  *) exec aarch64-linux-gnu-g++ "--sysroot=$sysroot" "-I$mpi/include" "\$@" "-L$mpi/lib" -lmpi ;;
esac
END
chmod +x "$folder/mpicxx"
say "configuring"
rm -f "$folder/build/CMakeCache.txt"
cmake -S . -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
  -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" -DMANYRANKS_CUDA=OFF -DMANYRANKS_LIBTORCH="$torch" \
  -DMPI_CXX_COMPILER="$folder/mpicxx" -DMPIEXEC_EXECUTABLE=/bin/false -DMANYRANKS_CLANGXX=MANYRANKS_CLANGXX-NOTFOUND > "$folder/configure.log" 2>&1 ||
  { tail -n 30 "$folder/configure.log" >&2; fail "configuring failed (above; all of it: $folder/configure.log)"; }

plain_tests() {  # unit tests that are linked to manyranks_base alone
  sed -n 's/^build \([^ ]*test_common_[a-z0-9_]*\): CXX_EXECUTABLE.*/\1/p' "$folder/build/build.ninja" | while read -r program; do
    sed -n "\\|^build $program: CXX_EXECUTABLE|p" "$folder/build/build.ninja" | grep -q 'libmanyranks\.a' || echo "$program"
  done
}
mapfile -t programs < <(plain_tests)
lessons=(01_single_gpu/01_baseline 02_message_passing/01_ranks 03_data_parallel/01_naive 04_model_parallel/02_column_row
         05_mixed_precision/01_formats 06_pipeline/01_naive_stages)
[ $base = yes ] && lessons=()
say "building ${#programs[@]} unit tests without LibTorch, ${#lessons[@]} lessons"
ninja -C "$folder/build" -k 0 -j "${MANYRANKS_JOBS:-$(nproc)}" "${programs[@]}" ${lessons[@]:+"${lessons[@]}"} > "$folder/build.log" 2>&1 ||
  { grep -E 'error|FAILED' "$folder/build.log" | head -n 30 >&2; say "not all was built (above; all of it: $folder/build.log)"; }

# --- run ----------------------------------------------------------------------------------------------------------------
failed=0
for program in "${programs[@]}" ${lessons[@]:+"${lessons[@]}"}; do
  words=(); [[ $program == [0-9]* ]] && words=(--quick --device cpu)
  status=0
  OMP_NUM_THREADS=1 timeout 1200 qemu-aarch64-static -L "$sysroot" -E "LD_LIBRARY_PATH=$mpi/lib:$torch/lib:$torch/../torch.libs" \
    "$folder/build/$program" "${words[@]}" > "$folder/run.log" 2>&1 || status=$?
  printf '%-60s exit %s   %s\n' "$program" $status "$(tail -n 1 "$folder/run.log" | cut -c1-80)"
  [ $status = 0 ] || { failed=$((failed + 1)); tail -n 5 "$folder/run.log" | sed 's/^/    /'; }
done
say "$failed of $(( ${#programs[@]} + ${#lessons[@]} )) did not end with 0 under $(qemu-aarch64-static --version | head -n 1)"
[ $failed = 0 ]
