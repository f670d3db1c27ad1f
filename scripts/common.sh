# Sourced by tour.sh, test.sh and friends: set-up, build, and how ranks are started on this machine.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
[ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] && export PATH="${CUDA_HOME:-/usr/local/cuda}/bin:$PATH"
cores=$(nproc)

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# configure_and_build PRESET [TARGET...]: quiet when all is well, the compiler's words when not.
configure_and_build() {
  local preset=$1; shift
  cmake --preset "$preset" > "${TMPDIR:-/tmp}/manyranks-configure.$$" 2>&1 ||
    { cat "${TMPDIR:-/tmp}/manyranks-configure.$$"; rm -f "${TMPDIR:-/tmp}/manyranks-configure.$$"; echo "configuring failed (above)" >&2; exit 1; }
  rm -f "${TMPDIR:-/tmp}/manyranks-configure.$$"
  cmake --build --preset "$preset" -j "${MANYRANKS_JOBS:-$cores}" ${1:+--target "$@"}
}

# ranks N PROGRAM [FLAG...]: on N ranks, with srun inside a Slurm job, else with mpirun and only the flags that it needs.
ranks() {
  local n=$1; shift
  if [ -n "${SLURM_JOB_ID:-}" ] && command -v srun >/dev/null; then srun -n "$n" --mpi=pmix "$@"; return; fi
  local flags=()
  if mpirun --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE'; then
    [ "$(id -u)" = 0 ] && flags+=(--allow-run-as-root)
    [ "$n" -gt "$cores" ] && flags+=(--oversubscribe)
  fi
  mpirun "${flags[@]}" -np "$n" "$@"
}
