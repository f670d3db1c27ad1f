#!/usr/bin/env bash
# Grades the exercises of chapter 07: builds your files in build/challenge, runs them on 1, 2 and 4 ranks, and says what is right.
#   ./scripts/grade.sh                  all that you have changed
#   ./scripts/grade.sh ring [--hint]    one of them, with a second hint where it fails
#   ./scripts/grade.sh capstone         the capstone, against the reference; its own flags: capstone --help
#   ./scripts/grade.sh --class DIR      many learners: DIR/<name>/<exercise>.cpp -> grades.csv
set -euo pipefail
export MANYRANKS_CALLED_FROM=$PWD
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
command -v python3 >/dev/null || { echo "grade.sh: no python3; run ./scripts/setup.sh" >&2; exit 69; }
if [ "${1:-}" = capstone ]; then
  shift
  exec python3 -B 07_challenge/capstone/grade_capstone.py "$@"
fi
exec python3 -B 07_challenge/grader/main.py "$@"
