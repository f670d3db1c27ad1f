#!/usr/bin/env python3
"""The memory cap is a count of ours; this asks the kernel. Under a limit on a process's data (RLIMIT_DATA) that leaves room for 3/4 of
a model's parameters, gradients and optimiser state, one rank must fail, and two must train it.

    rlimit_test.py LESSON MPIRUN [FLAGS OF MPIRUN...]
"""
import resource
import subprocess
import sys
import time

lesson, launcher = sys.argv[1], sys.argv[2:]
LARGE = ["--width", "516", "--layers", "12", "--context", "24", "--batch", "1", "--steps", "2", "--memory-cap", "100gb"]
STATE = 16 * (12 * (12 * 516**2 + 13 * 516) + 2 * 264 * 516)  # bytes: fp32 values, gradients, two of Adam


def needed_without_model():
    """The most private data that a small run of the same program has, in bytes: LibTorch, MPI, threads."""
    process = subprocess.Popen([lesson, "--quick"], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    most = 0
    while process.poll() is None:
        try:
            with open(f"/proc/{process.pid}/status") as status:
                most = max([most] + [1024 * int(line.split()[1]) for line in status if line.startswith("VmData")])
        except OSError:
            break
        time.sleep(0.002)
    if process.wait() != 0 or most == 0:
        sys.exit(f"the small run ended with {process.returncode}, {most} bytes seen")
    return most


def run(ranks, limit):
    command = launcher + ["-n", str(ranks), lesson] + LARGE
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
    print(f"{ranks} rank(s), limit {limit / 2**20:.0f} MiB each: exit {result.returncode}\n{result.stdout[-2500:]}")
    return result.returncode, result.stdout


base = needed_without_model()
limit = base + STATE * 3 // 4
print(f"without the model {base / 2**20:.0f} MiB, the model's state {STATE / 2**20:.0f} MiB")
code, text = run(1, limit)
if code != 69 or "allocate memory" not in text:
    sys.exit("one rank should have run out of memory, and said so with exit 69")
code, text = run(2, limit)
if code != 0:
    sys.exit("two ranks should have trained it")
