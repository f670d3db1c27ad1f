"""How ranks are started on this machine, and how a job is ended so that no rank is left behind."""
import os
import pathlib
import shutil
import signal
import subprocess
import time


class Machine:
    """What the sweep must know: how many ranks have a core or a GPU of their own, and who starts them."""

    def __init__(self, environment=os.environ):
        self.cores = len(os.sched_getaffinity(0))
        self.gpus = count_gpus()
        self.slurm_tasks = int(environment.get("SLURM_NTASKS", 0)) if environment.get("SLURM_JOB_ID") and shutil.which("srun") else 0
        self.root = os.geteuid() == 0
        self.open_mpi = not self.slurm_tasks and is_open_mpi()

    def slots(self):
        """Ranks that do not share a core or a GPU with another."""
        return self.slurm_tasks or self.gpus or self.cores

    def describe(self):
        unit = "tasks of this Slurm job" if self.slurm_tasks else "GPUs" if self.gpus else "cores"
        return f"{self.slots()} {unit}, started by {'srun' if self.slurm_tasks else 'mpirun'}"

    def command(self, ranks, program):
        """The words that start `program` (a list) on that many ranks, with flags only where they are needed."""
        if self.slurm_tasks:
            return ["srun", "-n", str(ranks), "--mpi=pmix", *program]
        flags = []
        if self.open_mpi:
            flags += ["--allow-run-as-root"] if self.root else []
            flags += ["--oversubscribe"] if ranks > self.cores else []
        return ["mpirun", *flags, "-np", str(ranks), *program]


def count_gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def is_open_mpi():
    try:
        said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in said or "OpenRTE" in said


def descendants(pid):
    """Ids of all processes below `pid`. Open MPI gives each rank a process group of its own, so the group is not enough."""
    children = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def end(process, patience=5.0):
    """Asks the launcher to end its job; whoever is still there after `patience` seconds is killed."""
    below = descendants(process.pid)
    send(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and (process.poll() is None or any(map(alive, below))):
        time.sleep(0.05)
    for pid in {process.pid, *below, *descendants(process.pid)}:
        if pid != process.pid or process.poll() is None:
            send(pid, signal.SIGKILL)
    process.wait()


def send(pid, which):
    try:
        os.kill(pid, which)
    except ProcessLookupError:
        pass


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
