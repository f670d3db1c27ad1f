"""Starts endings on ranks and checks how jobs end where one rank skips, what listens to the network, and what is said.

usage: endings_test.py PROGRAM MPIEXEC [MPIEXEC_FLAGS...] GROUP      GROUP: mpi | variables
"""
import os
import re
import socket
import subprocess
import sys
import time

LIMIT_S = 120  # a bound against hanging, generous: a loaded machine starts ranks slowly
problems = []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more):
    drop = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "MANYRANKS_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    return {**kept, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in more.items()}}


def expect(name, codes, text, wanted, words=(), absent=()):
    wrong = [f"exit codes {codes}, expected {wanted} of all"] if any(code != wanted for code in codes) else []
    wrong += [f"the text does not say '{word}'" for word in words if word not in text]
    wrong += [f"the text says '{word}'" for word in absent if word in text]
    print(f"{'FAILED' if wrong else 'ok    '} {name}: exit {codes}", flush=True)
    if wrong:
        problems.append(f"{name}: {'; '.join(wrong)}\n{text}")


def by_mpi(mpiexec, program, arguments, **variables):
    done = subprocess.run([*mpiexec, "-n", "2", program, "--timeout-s", "60", *arguments], env=environment(**variables),
                          capture_output=True, text=True, timeout=LIMIT_S)
    return [done.returncode], done.stdout + done.stderr


def start_by_variables(program, ranks, arguments, master="127.0.0.1", **variables):
    port = free_port()
    if master:
        variables.update(MASTER_ADDR=master, MASTER_PORT=port)
    return [subprocess.Popen([program, "--timeout-s", "60", *arguments], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, env=environment(RANK=rank, WORLD_SIZE=ranks, **variables))
            for rank in range(ranks)]


def finish(processes):
    texts = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    return [process.returncode for process in processes], "".join(texts)


def listening(pid):
    """Addresses at which the process waits for connections: 127.0.0.1, 0.0.0.0, ::, ..."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
        if found:
            inodes.add(found.group(1))
    addresses = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            with open(f"/proc/{pid}/net/{table}") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            if row[3] == "0A" and row[9] in inodes:
                words = bytes.fromhex(row[1].split(":")[0])
                order = -1 if sys.byteorder == "little" else 1  # the kernel prints 32-bit words as it holds them
                turned = b"".join(words[i:i + 4][::order] for i in range(0, len(words), 4))
                addresses.append(socket.inet_ntop(family, turned))
    return addresses


def listeners_of_root(program, ranks, **more):
    """What rank 0 listens at while the job runs, and how the job ends."""
    processes = start_by_variables(program, ranks, ["--scenario", "linger"], **more)
    lines = []
    for line in processes[0].stdout:
        lines.append(line)
        if "lingering" in line:
            break
    addresses = listening(processes[0].pid) if lines and "lingering" in lines[-1] else None
    codes, text = finish(processes)
    return addresses, codes, "".join(lines) + text


def mpi(program, mpiexec):
    def run(*arguments, **variables):
        return by_mpi(mpiexec, program, ["--scenario", *map(str, arguments)], **variables)

    for victim in (0, 1):
        expect(f"rank {victim} skips, the other is in a collective", *run("skip_alone", "--victim", victim), 77,
               ["skipped (gpu): for the test, on one rank only"])
        expect(f"rank {victim} skips, the other meets", *run("skip_before", "--victim", victim), 77,
               ["skipped (gpu): for the test, before"])
    expect("rank 1 skips, the other computes", *run("skip_computing"), 77, ["skipped (gpu)"])
    expect("all skip", *run("skip_before", "--victim", -1), 77, ["skipped (gpu)"])
    expect("all skip at a barrier", *run("skip_alone", "--victim", -1), 77, ["skipped (gpu)"])
    expect("a skip that is forbidden", *run("skip_alone", MANYRANKS_REQUIRE="nccl,gpu"), 1,
           ["MANYRANKS_REQUIRE forbids this skip (gpu)"])
    expect("an exception of no known type", *run("odd"), 70, ["no std::exception"])
    codes, text = run("no_pidfd")
    if "skipped (seccomp)" in text:
        print("       seccomp is not to be had here: not tried")
        return
    expect("no pidfd_open", codes, text, 0,
           ["the death of rank 1 cannot be watched (pidfd_open: Function not implemented)"])
    expect("pidfd_open, no file left", *run("no_files"), 69, ["pidfd_open for rank", "ulimit -n"])


def variables(program):
    def run(scenario, victim):
        return finish(start_by_variables(program, 2, ["--scenario", scenario, "--victim", str(victim)]))

    for victim in (0, 1):
        expect(f"rank {victim} skips, the other is in a collective", *run("skip_alone", victim), 77, ["skipped (gpu)"])
    expect("rank 1 skips, the other meets", *run("skip_before", 1), 77, ["skipped (gpu)"])
    expect("all skip", *run("skip_before", -1), 77, ["skipped (gpu)"])

    def listens(name, ranks, master, word, absent=()):
        addresses, codes, text = listeners_of_root(program, ranks, master=master)
        expect(name, codes, text + f"listens at {addresses}", 0, [f"listens at [{word}"], absent)

    listens("one rank without MASTER_ADDR", 1, None, "]")
    listens("the store is on MASTER_ADDR only", 2, "127.0.0.1", "'127.0.0.1']")
    listens("the store is on localhost only", 2, "localhost", "'", ["'0.0.0.0'", "'::'"])


def main():
    start = time.monotonic()
    program, mpiexec, group = sys.argv[1], sys.argv[2:-1], sys.argv[-1]
    mpi(program, mpiexec) if group == "mpi" else variables(program)
    print(f"{time.monotonic() - start:.0f} s")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
