#!/usr/bin/env python3
"""Runs the benchmarks of a sweep file and gathers their rows in results/*.csv.

  scripts/sweep.py --quick                  the sweep of the tour: a few minutes on a laptop
  scripts/sweep.py scripts/sweeps/full.toml --dry-run
  scripts/sweep.py scripts/sweeps/full.toml --results results/full

Repeats are interleaved (every point once, then every point again), so that a noisy minute shows as spread and not as a slow
variant. A sweep that was stopped goes on where it stopped. Each run writes into a file of its own; its rows join the results only
when the program ended well and every row is sound.
"""
import argparse
import csv
import io
import json
import os
import pathlib
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import launcher
import results
import sweepfile

HERE = pathlib.Path(__file__).resolve().parent
STOPS = (signal.SIGINT, signal.SIGTERM)


class Journal:
    """Which runs are done. A run counts only if its rows are still in the CSV: delete them, and it runs again."""

    def __init__(self, folder):
        self.path = folder / "sweep.journal"
        self.entries = []
        if self.path.exists():
            for number, line in enumerate(self.path.read_text().splitlines(), 1):
                try:
                    self.entries.append(json.loads(line))
                except json.JSONDecodeError:
                    print(f"{self.path}:{number}: not a whole entry (stopped while writing?): that run is repeated")

    def add(self, entry):
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        self.entries.append(entry)

    def sweeps(self):
        return {entry["sweep"] for entry in self.entries}

    def done(self, rows, threads):
        """{(point, repeat)} of the runs with so many threads per rank whose rows are there."""
        there = {row["run_id"] for row in rows}
        return {(entry["point"], entry["repeat"]) for entry in self.entries if set(entry["run_ids"]) <= there and entry.get("threads") == threads}

    def seconds(self, point):
        """How long this point took so far, or any point if it never ran, or None."""
        of_all = [entry["seconds"] for entry in self.entries]
        of_point = [entry["seconds"] for entry in self.entries if entry["point"] == point]
        return statistics.median(of_point or of_all) if of_all else None


class Refused(Exception):
    """The sweep cannot go on at all: its rows would mix with others."""


def run(command, environment, timeout_s):
    """(exit code or None after the timeout, seconds, last lines)."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        # A session of its own: Ctrl-C reaches only the sweep, which then ends the job in order.
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        code = None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                # An impatient second Ctrl-C must not leave ranks behind.
                signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
                launcher.end(process)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        output.seek(0)
        return code, time.monotonic() - start, output.read().splitlines()[-12:]


def checked_rows(file):
    """The rows that a run wrote; ValueError if there are none or one is not sound."""
    if not file.exists():
        raise ValueError("it ended well but wrote no row")
    rows, problems = results.read([file])
    if problems:
        raise ValueError("its rows are not sound: " + "; ".join(f"line {problem.line}: {problem.text}" for problem in problems[:3]))
    return rows


def append(source, target, repeat):
    """Adds the rows of one run to the results in one write, with the number of the repeat where the program left it open."""
    with source.open(newline="") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
        header = reader.fieldnames
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n")
    if not target.exists() or target.stat().st_size == 0:
        writer.writeheader()
    elif target.read_text().split("\n", 1)[0] != ",".join(header):
        raise Refused(f"{target} has other columns than this build writes: --fresh moves old results aside")
    for line in lines:
        writer.writerow({**line, "repeat": line["repeat"] or repeat})
    with target.open("a") as file:
        file.write(text.getvalue())


def minutes(seconds):
    if seconds is None:
        return "?"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Sweep:
    def __init__(self, plan, machine, build, folder, allow_mixed=False):
        self.plan, self.machine, self.build, self.folder, self.allow_mixed = plan, machine, build, folder, allow_mixed
        self.failed, self.skipped, self.absent, self.ran = [], {}, {}, 0
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(folder)
        files = sorted(folder.glob("*.csv"))
        self.rows = results.read(files)[0] if files else []

    def command(self, point, csv_file):
        program = [str(self.build / point.program), *point.flags, "--threads", str(self.plan.threads), "--csv", str(csv_file)]
        return self.machine.command(point.ranks, program)

    def built(self, point):
        return os.access(self.build / point.program, os.X_OK)

    def todo(self):
        """[(repeat, point)], interleaved, without what is done or not built."""
        done = self.journal.done(self.rows, self.plan.threads)
        self.absent = {point.program: point for point in self.plan.points if not self.built(point)}
        most = max((point.repeats for point in self.plan.points), default=0)
        return [(repeat, point) for repeat in range(1, most + 1) for point in self.plan.points
                if repeat <= point.repeats and self.built(point) and (point.name(), repeat) not in done]

    def time_left(self, todo):
        known = [self.journal.seconds(point.name()) for _, point in todo]
        return None if None in known else sum(known)

    def run_all(self):
        todo = self.todo()
        for i, (repeat, point) in enumerate(todo):
            left = self.time_left(todo[i:])
            print(f"[{i + 1}/{len(todo)}] {point.name()}  repeat {repeat} of {point.repeats}  about {minutes(left)} left", flush=True)
            if point.name() in self.skipped or any(name == point.name() for name, *_ in self.failed):
                print("    left out: it was skipped or failed before", flush=True)
                continue
            self.run_one(repeat, point)

    def run_one(self, repeat, point):
        with tempfile.TemporaryDirectory(prefix="manyranks-sweep-") as scratch:
            file = pathlib.Path(scratch) / "rows.csv"
            environment = dict(os.environ, OMP_NUM_THREADS=str(self.plan.threads))
            code, seconds, last = run(self.command(point, file), environment, point.timeout_s)
            if code == 77:
                why = re.search(r"skipped \((\w+)\): (.*)", "\n".join(last))
                self.skipped[point.name()] = ": ".join(why.groups()) if why else "no reason given: that is a defect of the program"
                print(f"    skipped: {self.skipped[point.name()]}", flush=True)
                return
            try:
                if code is None:
                    raise ValueError(f"still running after {point.timeout_s:g} s: ended")
                if code != 0:
                    raise ValueError(f"exit {code}")
                self.keep(repeat, point, file, seconds)
            except ValueError as error:
                self.failed.append((point.name(), repeat, str(error), last))
                print(f"    FAILED: {error}\n" + "\n".join(f"    | {line}" for line in last), flush=True)

    def keep(self, repeat, point, file, seconds):
        rows = checked_rows(file)
        mixed = results.mixture(self.rows + rows)
        if mixed and not self.allow_mixed:
            raise Refused(f"{self.folder} would mix {mixed}. --fresh moves the old results aside, --results DIR writes elsewhere, --allow-mixed mixes")
        # Journal first: if we die between the two writes, the rows are missing and the run is repeated.
        self.journal.add({"sweep": self.plan.name, "point": point.name(), "threads": self.plan.threads, "repeat": repeat, "seconds": round(seconds, 3),
                          "run_ids": sorted({row["run_id"] for row in rows}), "rows": len(rows)})
        append(file, self.folder / f"{point.file()}.csv", repeat)
        self.rows += rows
        self.ran += 1
        print(f"    {len(rows)} rows in {seconds:.1f} s", flush=True)

    def report(self):
        print(f"\n{self.ran} runs done, {len(self.failed)} failed, {len(self.skipped)} skipped, {len(self.absent)} programs not built. Rows: {self.folder}/*.csv")
        for name, repeat, why, _ in self.failed:
            print(f"  failed     {name} (repeat {repeat}): {why}")
        for name, why in self.skipped.items():
            print(f"  skipped    {name}: {why}")
        for program in self.absent:
            print(f"  not built  {program}")
        for note in self.plan.notes:
            print(f"  left out   {note}")
        return 1 if self.failed else 0


def move_aside(folder):
    """Old results are never deleted: they move to old/DATE."""
    old = [path for path in folder.glob("*") if path.suffix in (".csv", ".journal")]
    if old:
        target = folder / "old" / time.strftime("%Y%m%d-%H%M%S")
        target.mkdir(parents=True)
        for path in old:
            path.rename(target / path.name)
        print(f"{len(old)} old files moved to {target}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", nargs="?", type=pathlib.Path, help="a sweep file (scripts/sweeps/*.toml)")
    parser.add_argument("--quick", action="store_true", help="the quick sweep")
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent / "build", help="folder with the programs")
    parser.add_argument("--results", type=pathlib.Path, default=HERE.parent / "results", help="folder for the CSV files")
    parser.add_argument("--dry-run", action="store_true", help="list the commands, run nothing")
    parser.add_argument("--fresh", action="store_true", help="move older results aside first")
    parser.add_argument("--allow-mixed", action="store_true", help="let rows of several commits or machines stand together")
    chosen = parser.parse_args()
    if bool(chosen.sweep) == chosen.quick:
        parser.error("name one sweep file, or --quick")
    chosen.sweep = chosen.sweep or HERE / "sweeps" / "quick.toml"
    return chosen


def main():
    chosen = arguments()
    machine = launcher.Machine()
    try:
        plan = sweepfile.load(chosen.sweep, machine.slots(), chosen.build)
    except sweepfile.Wrong as error:
        print(f"sweep.py: {error}", file=sys.stderr)
        return 64
    if chosen.fresh and not chosen.dry_run and chosen.results.exists():
        move_aside(chosen.results)
    sweep = Sweep(plan, machine, chosen.build, chosen.results, chosen.allow_mixed)
    others = sweep.journal.sweeps() - {plan.name}
    if others and not chosen.allow_mixed:
        print(f"sweep.py: {chosen.results} holds the sweep {', '.join(others)}: --fresh moves it aside, --results DIR writes elsewhere", file=sys.stderr)
        return 64
    todo = sweep.todo()
    print(f"Sweep {plan.name}: {len(todo)} runs to do, {machine.describe()}, {plan.threads} thread(s) per rank")
    if chosen.dry_run:
        for _, point in todo:
            print(shlex.join(sweep.command(point, chosen.results / f"{point.file()}.csv")))
        return sweep.report()
    # A batch system ends a job with SIGTERM: treat it as Ctrl-C.
    for which in STOPS:
        signal.signal(which, signal.default_int_handler)
    try:
        sweep.run_all()
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", flush=True)
        sweep.report()
        return 130
    except Refused as error:
        print(f"sweep.py: {error}", file=sys.stderr)
        return 65
    return sweep.report()


if __name__ == "__main__":
    sys.exit(main())
