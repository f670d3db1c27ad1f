"""Starts the judge on ranks and reads its report: what was found for each exercise, and how the run ended."""
import dataclasses
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import tempfile

import processes
from entry import Broken

WAIT_SECONDS = 5    # a rank that waits longer for another one has found a hang (the Communicator's watchdog)
RUN_SECONDS = 20    # a run that takes longer is ended by us


@dataclasses.dataclass
class Finding:
    check: str
    ok: bool
    seen: str
    hint: str = ""  # the name of a hint


@dataclasses.dataclass
class Run:
    """One exercise on one number of ranks."""
    ranks: int
    findings: list = dataclasses.field(default_factory=list)
    ended: str = "in order"  # in order | hang | disagree | crash | stopped | broken
    timed_out: bool = False
    output: str = ""
    device: str = ""


class Court:
    def __init__(self, toolchain, seed=None, device="auto"):
        self.toolchain = toolchain
        self.starter = toolchain.starter()
        self.seed = secrets.randbelow(1 << 31) if seed is None else seed
        self.device = device

    def device_for(self, ranks):
        # A GPU per rank, or none: with more ranks than GPUs the numbers stay on the CPU.
        return "cpu" if self.device == "auto" and ranks > self.starter.machine.gpus else self.device

    def command(self, ranks, jobs, report, word):
        program = [str(self.toolchain.judge), "--report", str(report), "--word", word, "--seed", str(self.seed), "--timeout-s", str(WAIT_SECONDS), "--device", self.device_for(ranks)]
        for name, library in jobs:
            program += ["--job", f"{name}={library}"]
        return program if ranks == 1 and not self.starter.machine.slurm_tasks else self.starter.command(ranks, program)

    def judge(self, jobs, ranks):
        """jobs: (exercise name, library) pairs, run one after the other in one start; one that stops the run costs only itself. Yields a Run each."""
        jobs = list(jobs)
        while jobs:
            runs = self._start(jobs, ranks)
            yield from runs
            jobs = jobs[len(runs):]

    def _start(self, jobs, ranks):
        lines, ended = self._run(jobs, ranks)
        runs = read(lines, ended, ranks, jobs)
        if runs:
            return runs
        # Not a word in the report: is it this machine, or did the file wipe the report? Without a file the judge only starts its ranks.
        _, alone = self._run([], ranks)
        if alone.code != 0 or alone.timed_out:
            said = [line for line in alone.output.splitlines() if line.strip(" -")]
            raise Broken(f"the judge does not start on {ranks} rank{'s' if ranks > 1 else ''} (exit {alone.code}): {' '.join(said[-4:])[:400] or 'no output'}")
        return [Run(ranks, [Finding("", False, "nothing is left of the report", "crash")], "crash", ended.timed_out, ended.output)]

    def _run(self, jobs, ranks):
        """(the lines of the report, how the run ended)"""
        room = pathlib.Path(tempfile.mkdtemp(prefix="manyranks-grade-"))
        word = secrets.token_hex(8)
        report = os.open(room / "report", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)  # kept open: it can be read even if a learner's code deletes it
        try:
            scratch = room / "scratch"
            scratch.mkdir()
            cuda = self.device_for(ranks) != "cpu"
            ended = processes.run(self.command(ranks, jobs, room / "report", word), cwd=scratch, seconds=RUN_SECONDS + len(jobs), environment=self.starter.environment(),
                                  limits=self.toolchain.limits(cuda))
            os.lseek(report, 0, os.SEEK_SET)
            with open(os.dup(report), encoding="utf-8", errors="replace") as file:
                return [line[len(word) + 1:] for line in file if line.startswith(word + " ")], ended
        finally:
            os.close(report)
            shutil.rmtree(room, ignore_errors=True)


def read(lines, ended, ranks, jobs):
    """The report's lines -> a Run for each job that was reached; none if the judge did not begin. The last is where the run stopped, if it stopped."""
    runs, trying, complete = [], "", False
    for line in lines:
        try:
            said = json.loads(line)
            if "exercise" in said:
                if said["ranks"] != ranks:
                    raise Broken(f"{ranks} ranks were asked for, and {said['ranks']} came: the launcher and the judge are of different MPI libraries?")
                runs.append(Run(ranks, device=said["device"]))
                trying, complete = "", False
            elif "trying" in said:
                trying = said["trying"]
            elif "check" in said:
                runs[-1].findings.append(Finding(said["check"], said["ok"], said["seen"], said["hint"]))
            elif "end" in said:
                complete = True
        except (ValueError, LookupError, TypeError):
            continue  # a learner's program wrote over it: what is missing then counts as not reached
    if not runs:
        return []
    runs[-1].output = (f"({ended.dropped} more bytes were printed before this) ...\n" if ended.dropped else "") + ended.output
    if complete and len(runs) == len(jobs) and not ended.timed_out and ended.code == 0:
        return runs
    last = runs[-1]
    if complete and len(runs) < len(jobs):
        # Stopped between two exercises: whoever comes next is tried again, alone in front.
        return runs
    last.ended, seen = why(ended)
    last.timed_out = ended.timed_out
    if not complete and not any(finding.hint == "stopped" for finding in last.findings):  # that one has been written down already
        last.findings.append(Finding(trying, False, seen, last.ended))
    elif complete:
        last.ended = "in order" if not ended.timed_out else last.ended  # all checks were made; what happens after them is not judged
    return runs


def why(ended):
    """How a run that did not end in order ended: (kind, what to tell)."""
    line = next((line for line in ended.output.splitlines() if "manyranks: error:" in line), "")
    line = re.sub(r".*manyranks: error: ", "", line)
    if ended.timed_out:
        return "hang", f"still running after {ended.seconds:.0f} s, and ended by the grader"
    if ended.code == 75:
        return "hang", line or "the ranks waited for each other"
    if ended.code == 70 and line:
        return "disagree", line
    number = ended.code - 128 if ended.code > 128 else -ended.code
    if 0 < number < 64:
        return "crash", f"the program was ended by {signal.Signals(number).name}"
    if ended.code == 1:
        return "stopped", line or "the program stopped"
    return ("broken", line) if line else ("crash", f"the program ended by itself (exit {ended.code}) in the middle of a check")
