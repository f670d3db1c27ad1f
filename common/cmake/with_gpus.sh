#!/bin/sh
# with_gpus.sh N NEED COMMAND...: runs COMMAND if this node has N GPUs for it; otherwise a skip (77) that says why, and a failure
# where MANYRANKS_REQUIRE names NEED (gpu, or nccl for several ranks) or gpu. CTest hands out GPUs by RESOURCE_GROUPS (one group per
# rank); without its resource file, all that are visible count.
wanted=$1; need=$2; shift 2
skip() {
  case ",${MANYRANKS_REQUIRE:-}," in
    *",$need,"*|*,gpu,*) echo "manyranks: error: MANYRANKS_REQUIRE forbids this skip ($need): $1" >&2; exit 1 ;;
  esac
  echo "manyranks: skipped ($need): $1"
  exit 77
}

if [ -n "${CTEST_RESOURCE_GROUP_COUNT:-}" ]; then
  visible=""
  group=0
  while [ "$group" -lt "$CTEST_RESOURCE_GROUP_COUNT" ]; do
    eval "given=\${CTEST_RESOURCE_GROUP_${group}_GPUS:-}"   # id:3,slots:1
    id=${given#id:}
    visible="${visible:+$visible,}${id%%,*}"
    group=$((group + 1))
  done
  export CUDA_VISIBLE_DEVICES="$visible"
fi
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
  there=$(printf '%s' "$CUDA_VISIBLE_DEVICES" | awk -F, '{ print NF }')
else
  there=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
fi
there=${there:-0}
[ "$there" -ge "$wanted" ] || skip "$wanted rank(s) need as many GPUs, and $there can be used here"
exec "$@"
