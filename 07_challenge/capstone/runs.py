"""Runs of the capstone: starts a trainer, reads its figures, and says what is wrong with them."""
import json
import re
import secrets
import statistics

import processes
from catalog import ROOT
from entry import Broken, Usage
from toolchain import Toolchain

# MiB of tensors per rank. Between what plain data parallelism holds and what the reference does: README.md has the measured rows.
CAPS = {"gpt": {2: 44, 4: 30}, "resnet": {2: 200, 4: 160}}
QUICK_CAPS = {"gpt": 200, "resnet": 400}
TARGETS = {"gpt": 1.0, "resnet": 1.0}
# The last steps' mean is not yet the loss on new data: how much more that may be.
MARGIN = 1.15
# A call of whole() may take this many times the reference's (other cuts need other gathers), and a little for a busy machine; a step takes more.
WHOLE_TIMES, WHOLE_SECONDS = 3.0, 0.005
HEAP_BYTES = 8 << 30  # per rank: the cap is on tensors, this is for the machine's sake


class Finding(Exception):
    """What is wrong with a run, in one sentence."""


def new_seed():
    return secrets.randbelow(2**20) + 2


class Judge:
    def __init__(self, chosen):
        self.chosen = chosen
        self.toolchain = Toolchain(chosen.build)
        self.timeout_s = chosen.timeout_s or (60 if chosen.quick else 300)
        self.reference = chosen.build / "07_challenge" / "capstone" / "capstone_reference"
        self.starter = self.toolchain.starter() if self.toolchain.file.exists() else None
        self.limits = processes.Limits(None if self.starter and self.toolchain.settings.get("sanitize") else HEAP_BYTES)

    def cap_mib(self, task):
        return self.chosen.memory_cap or (QUICK_CAPS[task] if self.chosen.quick else CAPS[task][self.chosen.ranks])

    def two_nodes(self, words):
        return [str(ROOT / "scripts" / "two_nodes.sh"), "--ranks-per-node", str(self.chosen.ranks // 2), "--rate", self.chosen.link, "--", *words]

    def no_link(self):
        """Why two nodes cannot be made here (no root, or a container that may not); empty if they can."""
        ended = processes.run(self.two_nodes(["true"]), cwd=ROOT, seconds=60)
        if ended.code == 64:
            raise Usage(f"--link: {last_line(ended)}")
        return last_line(ended) if ended.code == 77 else ""

    def start(self, command, scratch, seconds):
        return processes.run(command, cwd=scratch, seconds=seconds, environment=self.starter.environment(OMP_NUM_THREADS="1"), limits=self.limits)

    def run(self, program, task, seed, scratch):
        """The figures of one run, with the loss on data that nobody had seen; or a Finding."""
        result, weights = scratch / "result.json", scratch / "weights.safetensors"
        for old in (result, weights):
            old.unlink(missing_ok=True)
        # On the CPU, also where there are GPUs: the cap counts what LibTorch takes from the host, and nothing of CUDA's.
        words = [str(program), "--task", task, "--device", "cpu", "--seed", str(seed), "--memory-cap", str(int(self.cap_mib(task) * 2**20)), "--result", str(result), "--weights", str(weights),
                 "--timeout-s", str(max(2, min(60, self.timeout_s / 3)))]
        words += ["--quick"] if self.chosen.quick else []
        words += ["--target", str(self.chosen.target)] if self.chosen.target else []
        ended = self.start(self.two_nodes(words) if self.chosen.link else self.starter.command(self.chosen.ranks, words), scratch, self.timeout_s)
        if ended.timed_out:
            raise Finding(f"it hangs: still running after {self.timeout_s:g} s, ended")
        if ended.code != 0:
            raise Finding(explain(ended))
        figures = self.figures(result, task)
        return {**figures, "held_out": self.held_out(task, seed, weights, scratch)}

    def figures(self, result, task):
        try:
            figures = json.loads(result.read_text())
            numbers = {key: float(figures[key]) for key in ("seconds", "whole_seconds", "whole_calls", "steps", "loss", "peak_bytes")}
            figures = {**numbers, "steps": int(figures["steps"]), **{key: str(figures[key]) for key in ("initial_hash", "data_hash")}}
        except (OSError, ValueError, TypeError, LookupError):
            raise Finding("it ended well, but before the end: there are no figures of the run") from None
        if not (figures["seconds"] > 0 and figures["whole_calls"] > 0):
            raise Finding(f"its figures cannot be: {figures}")
        if figures["peak_bytes"] > self.cap_mib(task) * 2**20:
            raise Finding(f"over the memory: at most {figures['peak_bytes'] / 2**20:.1f} MiB per rank were held, the cap is {self.cap_mib(task):g}")
        return figures

    def held_out(self, task, seed, weights, scratch):
        """By the reference's program: the learner's code has ended, and the seed of these data did not exist before."""
        # The weights' file holds no seed: the model of any seed has the same shapes, and every value is read.
        words = ["--task", task, "--device", "cpu", "--seed", str(seed), "--evaluate", str(weights), "--held-out", str(secrets.randbelow(2**31) + 2**31)]
        ended = self.start(self.starter.command(1, [str(self.reference), *words, *(["--quick"] if self.chosen.quick else [])]), scratch, 120)
        said = re.search(r"held-out loss ([0-9.]+)", ended.output)
        if ended.code != 0 or not said:
            raise Finding("its final weights cannot be evaluated: " + last_line(ended))
        return float(said[1])


def last_line(ended):
    return next((line.strip() for line in reversed(ended.output.splitlines()) if line.strip()), "no output")


def explain(ended):
    """The program's own error line, in the learner's words."""
    line = next((line for line in ended.output.splitlines() if "error:" in line or "[exit" in line), last_line(ended))
    if "--memory-cap: " in line:
        return f"over the memory: {line}"
    for word, meaning in (("initial weights", "other initial weights"), ("data:", "other data"), ("loss:", "a false loss"), ("target:", "the target was not reached")):
        if ended.code == 1 and word in line:
            return f"{meaning}: {line}"
    if ended.code == 75:
        return f"it hangs, or a rank died: {line}"
    return f"it ended with exit {ended.code}: {line}"


def compare(judge, task, program, rounds, scratch, seed):
    """[(reference, learner)] by turns, on one seed; a Finding if a run of the learner is not valid."""
    pairs = []
    for number in range(rounds):
        both = {}
        # Who comes first changes from round to round: a machine that grows warm, or busy, is nobody's advantage.
        for who, path in (("reference", judge.reference), ("yours", program))[:: 1 if number % 2 == 0 else -1]:
            try:
                got = both[who] = judge.run(path, task, seed, scratch)
            except Finding as finding:
                if who == "reference":  # a setting that does not suit it, or a machine that cannot
                    raise (Usage if "[exit 64]" in str(finding) else Broken)(f"{task}: the reference itself cannot run so: {finding}") from None
                raise
            print(f"  {task}, round {number + 1}, {who:9}: {got['seconds']:.2f} s, {got['steps']} steps, loss on new data {got['held_out']:.3f}, "
                  f"at most {got['peak_bytes'] / 2**20:.1f} MiB per rank", flush=True)
        pairs.append((both["reference"], both["yours"]))
        check_pair(*pairs[-1], judge.chosen.target or (None if judge.chosen.quick else TARGETS[task]))
    check_whole([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    return pairs


def check_pair(reference, mine, target):
    for key, word in (("initial_hash", "initial weights"), ("data_hash", "data")):
        if reference[key] != mine[key]:
            raise Finding(f"other {word} than the reference had ({mine[key]} against {reference[key]})")
    limit = MARGIN * (target or max(reference["held_out"], reference["loss"]))
    if not mine["held_out"] <= limit:
        raise Finding(f"a false loss: its steps say {mine['loss']:.3f}, its final weights give {mine['held_out']:.3f} on data they have not seen (at most {limit:.3f})")


def check_whole(reference, mine):
    """whole() is not in the score, so nobody may work there. Per call, in the median over rounds."""
    per_call = lambda runs: statistics.median(run["whole_seconds"] / run["whole_calls"] for run in runs)  # noqa: E731
    took, limit = per_call(mine), WHOLE_TIMES * per_call(reference) + WHOLE_SECONDS
    if took > limit:
        raise Finding(f"work in whole(): a call takes {1000 * took:.1f} ms, where {1000 * limit:.1f} are enough ({WHOLE_TIMES:g} times the reference's)")
