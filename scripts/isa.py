#!/usr/bin/env python3
"""The tests that compare numbers, on CPUs that this one imitates: three variables tell ATen, MKL and oneDNN which instructions to use.

  scripts/isa.py --build build sse                 the np 2 tests of chapters 03 to 06 and of common/ under one imitated CPU
  scripts/isa.py --build build --threads 2 avx2    the same, two threads per rank
  scripts/isa.py --build build --long              every CPU x 1 and 2 threads x every number of ranks
  scripts/isa.py --build build --list              which tests that would be

The tests are read from CTest and started from here, because CTest would set OMP_NUM_THREADS to 1. Nothing is built. Exit 0: all passed;
1: one failed, or none ran; 77: this CPU cannot imitate that one."""
import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time

IMITATED = {  # ATEN_CPU_CAPABILITY, MKL_ENABLE_INSTRUCTIONS, ONEDNN_MAX_CPU_ISA, flags that the real CPU must have
    "sse": ("default", "SSE4_2", "SSE41", {"sse4_1", "sse4_2"}),
    "avx2": ("avx2", "AVX2", "AVX2", {"avx2", "fma"}),
    "avx512": ("avx512", "AVX512", "AVX512_CORE", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
}
VARIABLES = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
COMPARING = re.compile(r"^ch0[3-6]\.|^common\.(collectives|parallel|kernels|models|train|measure|algorithms|host_group)(\.|$)")
# Jobs that must end badly or at once, memory caps, nodes, benchmarks, GPUs; what has no number in it; what repeats a comparison for minutes.
NOT_COMPARING = re.compile(r"\.(faults|bad|cap|failures|stall|stop|die|throw|gpu|trace)(\.|$)|bench_|nodes|schedules|two_ranks|accuracy|_wire|\.gloo|many_steps")


ONLY_LONG = re.compile(r"same_bits|resume|bf16\.sync_batchnorm")  # half a minute and more, each


def tests_of(build, long):
    listed = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True, text=True).stdout)
    chosen = []
    for test in listed["tests"]:
        name = test["name"]
        ranks = re.search(r"\.np(\d+)$", name)
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        if "command" not in test or properties.get("DISABLED") or not COMPARING.search(name) or NOT_COMPARING.search(name):
            continue
        # Lessons on one device have no np 2: they run as they are. The others once, on two ranks, unless --long.
        twin = ranks and any(t["name"] == name[:ranks.start()] + ".np2" for t in listed["tests"])
        short = not ONLY_LONG.search(name) and (not ranks or ranks[1] == "2" or (ranks[1] == "1" and not twin))
        if long or short:
            chosen.append((name, test["command"], properties))
    return chosen


def run(command, properties, variables, scale):
    environment = dict(os.environ)
    environment.update(word.split("=", 1) for word in properties.get("ENVIRONMENT", []))
    environment.update(variables)
    job = subprocess.Popen(command, env=environment, cwd=properties.get("WORKING_DIRECTORY"), start_new_session=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        output, _ = job.communicate(timeout=properties.get("TIMEOUT", 120) * scale)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGTERM)  # mpirun takes its ranks along
        try:
            output, _ = job.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            output, _ = job.communicate()
        return None, output
    return job.returncode, output


def in_force(probe, variables):
    """What the libraries say that they use: ATen in its own words, oneDNN and MKL in their verbose headers, and whether MKL's bits moved."""
    said = subprocess.run([probe], env={**os.environ, **variables, "ONEDNN_VERBOSE": "all", "MKL_VERBOSE": "1", "OMP_NUM_THREADS": "1"},
                          check=True, capture_output=True, text=True).stdout
    aten = re.search(r"^aten (\S+)", said, re.M)
    onednn = re.search(r"onednn_verbose.*?,cpu,isa:([^\n]*)", said)
    mkl = re.search(r"MKL_VERBOSE (oneMKL[^\n]*)", said)
    product = re.search(r"^product (\S+)", said, re.M)
    return aten and aten[1], onednn[1] if onednn else "not said", mkl[1] if mkl else "no MKL", product and product[1]


def imitate(name, threads, arguments):
    aten, mkl, onednn, needs = IMITATED[name]
    with open("/proc/cpuinfo") as file:
        flags = set(next((line.split(":", 1)[1] for line in file if line.startswith("flags")), "").split())
    if platform.machine() not in ("x86_64", "AMD64") or not needs <= flags:
        print(f"skipped (isa): this CPU cannot imitate {name}: it has no {', '.join(sorted(needs - flags)) or 'x86 instructions'}")
        return 1 if "isa" in os.environ.get("MANYRANKS_REQUIRE", "").split(",") else 77
    variables = dict(zip(VARIABLES, (aten, mkl, onednn)), OMP_NUM_THREADS=str(threads))
    if arguments.probe:
        says_aten, says_onednn, says_mkl, product = in_force(arguments.probe, variables)
        own = in_force(arguments.probe, {})
        print(f"{name}, {threads} thread(s): ATen {says_aten}; oneDNN {says_onednn}; {says_mkl}; a product's bits: {product}, without the variables: {own[3]}")
        if says_aten.lower() != aten:
            print(f"ATen says {says_aten}, not {aten}: nothing is imitated")
            return 1
    passed, skipped, failed, begin = 0, 0, [], time.monotonic()
    for test, command, properties in tests_of(arguments.build, arguments.long):
        start = time.monotonic()
        code, output = run(command, properties, variables, 3)
        seconds = time.monotonic() - start
        verdict = "timed out" if code is None else "skipped" if code == properties.get("SKIP_RETURN_CODE", 77) else "passed" if code == 0 else f"FAILED ({code})"
        print(f"  {test:45} {verdict} {seconds:6.1f} s", flush=True)
        if verdict == "passed":
            passed += 1
        elif verdict == "skipped":
            skipped += 1
        else:
            failed.append(test)
            print(output[-3000:], flush=True)
    print(f"{name}, {threads} thread(s): {passed} passed, {skipped} skipped, {len(failed)} failed in {time.monotonic() - begin:.0f} s {' '.join(failed)}")
    if passed == 0:
        print("no test ran: build them first")
    return 0 if passed and not failed else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cpu", nargs="?", choices=IMITATED)
    parser.add_argument("--build", default="build")
    parser.add_argument("--probe", help="the program that says which instructions are in force (default: BUILD/scripts/isa_probe)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.probe is None and os.path.exists(f"{arguments.build}/scripts/isa_probe"):
        arguments.probe = f"{arguments.build}/scripts/isa_probe"
    if arguments.list:
        print("\n".join(name for name, _, _ in tests_of(arguments.build, arguments.long)))
        return 0
    if arguments.cpu:
        return imitate(arguments.cpu, arguments.threads, arguments)
    if not arguments.long:
        parser.error("which CPU: " + ", ".join(IMITATED))
    codes = [imitate(name, threads, arguments) for name in IMITATED for threads in (1, 2)]
    return 1 if 1 in codes or all(code == 77 for code in codes) else 0


if __name__ == "__main__":
    sys.exit(main())
