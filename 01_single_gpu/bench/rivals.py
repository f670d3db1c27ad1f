"""What the two rival scripts share: the exit where PyTorch is missing, a program of ours that runs on demand, and turns."""
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def skip(reason):
    """Exit 77, or 1 where MANYRANKS_REQUIRE says that the rivals must be there."""
    required = "rivals" in os.environ.get("MANYRANKS_REQUIRE", "").split(",")
    print(f"manyranks: {'error: MANYRANKS_REQUIRE forbids this skip' if required else 'skipped'} (rivals): {reason}; ./scripts/setup.sh --rivals installs it", flush=True)
    sys.exit(1 if required else 77)


class Ours:
    """Our program as a process beside this one: it sleeps on a pipe while the rival has its turn."""

    def __init__(self, *command):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.hello = self.answer("ready")

    def answer(self, beginning=""):
        for line in self.process.stdout:
            if line.startswith(beginning):
                return line.strip()
        sys.exit(f"{self.process.args[0]} ended early, with exit {self.process.wait()}")

    def ask(self, line, beginning=""):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.answer(beginning)

    def close(self):
        self.process.stdin.write("end\n")  # not only closed: workers that were forked meanwhile hold the pipe open, too
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit(f"{self.process.args[0]} ended with exit {self.process.returncode}")


def by_turns(contenders, rounds):
    """{name: seconds of its turns}. All go in each round; the order reverses from round to round, so that none is always first."""
    seconds = {name: [] for name in contenders}
    for number in range(rounds):
        for name in list(contenders)[:: 1 if number % 2 == 0 else -1]:
            seconds[name].append(contenders[name]())
    return seconds


def ratio(slow, fast):
    """Median over rounds of slow / fast, and the quartiles."""
    ratios = sorted(a / b for a, b in zip(slow, fast))
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return statistics.median(ratios), low, high
