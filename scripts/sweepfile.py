"""Sweep files: which programs, on how many ranks, with which flags, how often. Small TOML files that a person can read.

  name = "quick"          # one results folder holds one sweep
  threads = 1             # per rank, the same everywhere: scaling over ranks then compares like with like
  repeats = 3             # of each point, interleaved
  timeout_s = 60          # of each run
  [[points]]
  program = "03_data_parallel/bench_scaling"     # in the build folder; "04_model_parallel/bench_*" is every one that is built
  ranks = [1, 2, 4]
  oversubscribe_to = 4    # up to so many ranks may share cores (their rows say so); without it they are left out
  flags = ["--quick"]
  over = { model = ["mlp", "gpt"], batch = [32, 64] }    # every combination: --model mlp --batch 32, ...
  repeats = 5             # for this point alone; timeout_s likewise
"""
import dataclasses
import itertools
import os
import pathlib
import re
import tomllib

PLAN_KEYS = {"name": str, "threads": int, "repeats": int, "timeout_s": (int, float), "points": list}
POINT_KEYS = {"program": str, "ranks": list, "oversubscribe_to": int, "flags": list, "over": dict, "repeats": int, "timeout_s": (int, float)}


class Wrong(Exception):
    """The sweep file says something that cannot be run."""


@dataclasses.dataclass
class Point:
    program: str
    ranks: int
    flags: list
    repeats: int
    timeout_s: float

    def name(self):
        return " ".join([self.program, f"np{self.ranks}", *self.flags])

    def file(self):
        """The CSV's name, as the target `bench` calls it: ch02_bench_collectives."""
        chapter, _, program = self.program.partition("/")
        number = re.match(r"\d\d", chapter)
        return f"ch{number.group()}_{program.replace('/', '_')}" if number and program else self.program.replace("/", "_")


@dataclasses.dataclass
class Plan:
    name: str
    threads: int
    points: list
    notes: list  # what was left out, and why


def check_keys(table, allowed, where):
    for key, value in table.items():
        if key not in allowed:
            raise Wrong(f"{where}: unknown key '{key}'; known: {', '.join(allowed)}")
        if not isinstance(value, allowed[key]) or isinstance(value, bool):
            raise Wrong(f"{where}: '{key}' is {value!r}: wrong type")
        if key in ("threads", "repeats", "timeout_s") and value <= 0:
            raise Wrong(f"{where}: '{key}' is {value}: must be above 0")


def load(path, slots, build):
    """The plan for a machine with `slots` cores or GPUs and the programs in the folder `build`."""
    path = pathlib.Path(path)
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise Wrong(f"{path}: cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise Wrong(f"{path}: not TOML: {error}") from None
    check_keys(table, PLAN_KEYS, path)
    plan = Plan(table.get("name", path.stem), table.get("threads", 1), [], [])
    for number, entry in enumerate(table.get("points", []), 1):
        where = f"{path}, point {number}"
        check_keys(entry, POINT_KEYS, where)
        if "program" not in entry:
            raise Wrong(f"{where}: no 'program'")
        for program in matching(entry["program"], pathlib.Path(build)):
            expand({**entry, "program": program}, table, where, slots, plan)
    if not plan.points and not plan.notes:
        raise Wrong(f"{path}: no [[points]]: nothing to run")
    repeated = [point.name() for i, point in enumerate(plan.points) if point.name() in (other.name() for other in plan.points[:i])]
    if repeated:
        raise Wrong(f"{path}: the same point twice: {repeated[0]}")
    return plan


def matching(pattern, build):
    """The programs that a name stands for. A pattern that matches nothing stays: the sweep lists it as not built."""
    if "*" not in pattern:
        return [pattern]
    found = sorted(path for path in build.glob(pattern) if path.is_file() and os.access(path, os.X_OK))
    return [str(path.relative_to(build)) for path in found] or [pattern]


def expand(entry, table, where, slots, plan):
    """One entry of the file becomes a point for each number of ranks and each combination of `over`."""
    most = max(slots, entry.get("oversubscribe_to", 0))
    for ranks in entry.get("ranks", [1]):
        if not isinstance(ranks, int) or ranks < 1:
            raise Wrong(f"{where}: ranks {ranks!r}: must be whole numbers above 0")
        if ranks > most:
            plan.notes.append(f"{entry['program']} on {ranks} ranks: this machine has room for {slots}")
            continue
        for flags in combinations(entry.get("over", {}), where):
            plan.points.append(Point(entry["program"], ranks, [*map(str, entry.get("flags", [])), *flags],
                                     entry.get("repeats", table.get("repeats", 3)), entry.get("timeout_s", table.get("timeout_s", 600))))


def combinations(over, where):
    for name, values in over.items():
        if not isinstance(values, list) or not values:
            raise Wrong(f"{where}: over.{name} must be a list of values")
    for chosen in itertools.product(*over.values()):
        yield [word for name, value in zip(over, chosen) for word in (f"--{name}", str(value))]
