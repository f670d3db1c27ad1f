"""Starts misbehave on ranks and checks how the job ends: exit code, what the line names, how soon, and that nothing is left running.

usage: failures_test.py PROGRAM MPIEXEC [MPIEXEC_FLAGS...] [-- GROUP]
"""
import concurrent.futures
import functools
import os
import signal
import socket
import subprocess
import sys
import time
import uuid

TIMEOUT_S = 5  # also what the ranks have to find each other: less is too little on a loaded machine
SLACK_S = 8  # the promise is 2 s after the timeout; a loaded machine needs more


class Failure(Exception):
    pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def marked(mark):
    """Processes, not zombies, that carry our mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark.encode() not in file.read():
                    continue
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(pid))
        except OSError:
            pass
    return found


def clean_environment(mark, **more):
    drop = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    environment.update(MANYRANKS_TEST_MARK=mark, OMP_NUM_THREADS="1", **{k: str(v) for k, v in more.items()})
    return environment


def check_nothing_left(mark, name):
    for _ in range(20):
        if not marked(mark):
            return
        time.sleep(0.1)
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    raise Failure(f"{name}: processes left behind: {left}")


def by_mpi(mpiexec, program, ranks, arguments, **variables):
    mark = uuid.uuid4().hex
    start = time.monotonic()
    done = subprocess.run([*mpiexec, "-n", str(ranks), program, "--timeout-s", str(TIMEOUT_S), *arguments], env=clean_environment(mark, **variables),
                          capture_output=True, text=True, timeout=90)
    seconds = time.monotonic() - start
    check_nothing_left(mark, str(arguments))
    return [done.returncode], done.stdout + done.stderr, seconds


def by_variables(program, ranks, arguments, world_size=None, port=None, rank_of=None, **variables):
    mark = uuid.uuid4().hex
    port = port or free_port()
    start = time.monotonic()
    processes = []
    for i in range(ranks):
        rank = rank_of[i] if rank_of else i
        environment = clean_environment(mark, RANK=rank, WORLD_SIZE=world_size or ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **variables)
        processes.append(subprocess.Popen([program, "--timeout-s", str(TIMEOUT_S), *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    texts = [process.communicate(timeout=90)[0] for process in processes]
    seconds = time.monotonic() - start
    check_nothing_left(mark, str(arguments))
    return [process.returncode for process in processes], "".join(texts), seconds


def expect(name, result, code, words, usual_s, among=False):
    codes, text, seconds = result
    good = code in codes if among else all(c == code or c == -signal.SIGKILL for c in codes) and code in codes
    problems = []
    if not good:
        problems.append(f"exit codes {codes}, expected {code}")
    problems += [f"the text does not say '{word}'" for word in words if word not in text]
    if seconds > usual_s + TIMEOUT_S + 2 + SLACK_S:
        problems.append(f"took {seconds:.1f} s")
    print(f"{'ok    ' if not problems else 'FAILED'} {name}: exit {codes}, {seconds:.1f} s", flush=True)
    if problems:
        raise Failure(f"{name}: {'; '.join(problems)}\n{text}")


def scenarios(ranks):
    last = ranks - 1
    for victim in (0, last):
        for scenario in ("stop_inside", "stop_between", "stop_split", "stop_end", "stop_async"):
            yield scenario, victim, 75, [f"rank {victim}"]
    yield "stop_recv", last, 75, [f"rank {last}"]
    yield "wrong_call", last, 70, ["all_reduce(float32, 4, sum)", "broadcast(float32, 4, root 0)", f"rank {last} called broadcast", "called all_reduce"]  # any of the others may be the first to notice
    yield "wrong_count", 0, 70, ["all_reduce(float32, 4, sum)", "all_reduce(float32, 5, sum)"]
    yield "wrong_dtype", last, 70, ["all_reduce(float32, 4, sum)", "all_reduce(int32, 4, sum)"]
    yield "wrong_size_class", last, 70, ["all_reduce(float32, 4, sum)", "all_reduce(float32, 1048576, sum)"]
    yield "skipped_call", last, 70, ["all_reduce(float32, 4, sum)", "barrier()"]
    yield "swapped", last, 75, ["all_reduce(float32, 4, sum)", "of 'world/0.0'", "of 'world/1.0'"]
    yield "wrong_message", 0, 70, ["4 x float32", "3 x float32"]
    yield "throw", last, 65, ["a bad file"]


def side_by_side(checks):
    """Three jobs at a time: most of their time is the wait for a timeout. The first failure is raised when all have ended."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(check) for check in checks]:
            future.result()


def run_scenarios(run, label, ranks, usual_s, kill_code, kill_words):
    def check(scenario, victim, code, words, among=False):
        expect(f"{label} {scenario} of rank {victim}", run(ranks, ["--scenario", scenario, "--victim", str(victim)]), code, words, usual_s, among)

    side_by_side([functools.partial(check, *scenario) for scenario in scenarios(ranks)] + [functools.partial(check, "kill", ranks - 1, kill_code, kill_words, among=True)])


def rendezvous(program, usual_s):
    def check(name, code, words, ranks, arguments=(), among=False, **variables):
        return lambda: expect(name, by_variables(program, ranks, list(arguments), **variables), code, words, usual_s, among)

    with socket.socket() as busy:
        busy.bind(("0.0.0.0", 0))
        busy.listen()
        side_by_side([
            check("busy port", 69, ["in use"], 1, world_size=2, port=busy.getsockname()[1]),
            check("unreachable master", 75, ["cannot reach rank 0"], 1, world_size=2, rank_of=[1]),
            check("two ranks with one number", 64, ["already is rank 1"], 3, ["--scenario", "linger"], among=True, world_size=2, rank_of=[0, 1, 1]),
            check("a rank that never comes", 75, ["rank 2 did not come"], 2, world_size=3),
            check("no such interface", 64, ["MANYRANKS_INTERFACE", "no interface 'nosuch0'"], 2, MANYRANKS_INTERFACE="nosuch0", MANYRANKS_FORCE_WIRE=1),
            check("mpi without mpirun", 69, ["not started by an MPI launcher"], 1, ["--backend", "mpi"]),
        ])


def torchrun(program, usual_s):
    tool = os.path.join(os.path.dirname(sys.executable), "torchrun")
    if not os.path.exists(tool) or subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        print("manyranks: skipped (rivals): torchrun needs Python's torch")
        return 77
    mark = uuid.uuid4().hex
    start = time.monotonic()
    done = subprocess.run([tool, "--nproc-per-node", "4", "--master-port", str(free_port()), "--no-python", program, "--timeout-s", "30"], env=clean_environment(mark),
                          capture_output=True, text=True, timeout=170)
    check_nothing_left(mark, "torchrun")
    expect("torchrun --no-python", ([done.returncode], done.stdout + done.stderr, time.monotonic() - start), 0, ["backend gloo"], usual_s + 120)
    return 0


def main():
    group = sys.argv[-1]
    program, mpiexec = sys.argv[1], sys.argv[2:-1]
    mpi = lambda ranks, arguments, **more: by_mpi(mpiexec, program, ranks, arguments, **more)
    shells = lambda ranks, arguments, **more: by_variables(program, ranks, arguments, **more)
    usual = mpi(2, []) if group == "mpi" else shells(2, [])
    expect("nothing wrong", usual, 0, ["backend"], usual[2])
    if group == "mpi":
        run_scenarios(mpi, "mpirun", 3, usual[2], 128 + signal.SIGKILL, [])  # mpirun itself reports the dead rank
    elif group == "shells":
        run_scenarios(shells, "shells", 3, usual[2], 75, ["rank 2 died"])
    elif group == "rendezvous":
        expect("four shells", shells(4, []), 0, ["backend gloo"], usual[2] * 3)
        rendezvous(program, usual[2])
    else:
        return torchrun(program, usual[2])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(failure)
        sys.exit(1)
