#!/usr/bin/env python3
"""The same results for tools that people already have open: TensorBoard event files, or a Weights & Biases offline run.

  scripts/export.py tensorboard --out results/tensorboard        then: tensorboard --logdir results/tensorboard
  scripts/export.py wandb --out results/wandb                    nothing is sent; `wandb sync` is yours to call

Every figure in a row becomes a scalar; x is the number of ranks, bytes or steps, whatever the row was measured over.
"""
import argparse
import calendar
import os
import pathlib
import sys
import time

import plot
import results
from figures import scaling, style

HERE = pathlib.Path(__file__).resolve().parent
SCALARS = "median_s p95_s rate algbw_GBs busbw_GBs sent_bytes peak_bytes data_wait_s compute_s exposed_comm_s optimizer_s predicted measured loss".split()

REST = "kind device gpu backend transport nodes threads ranks bytes unit rate_unit host commit".split()  # part of a run's name where they differ


def run_name(row):
    """One line in the tool: what is equal along x."""
    return "/".join(style.slug(part) or "none" for part in (row["chapter"][:2], row["lesson"], row["workload"], row["variant"], row["scaling"], row["dtype"]))


def axis(rows):
    """The column that a group of rows runs over, most telling first."""
    return next((column for column in ("iterations", "bytes", "ranks") if len({row[column] for row in rows}) > 1 and all(row[column] is not None for row in rows)), "ranks")


def rest_of(rows, column):
    """The columns that, beside the name, tell two measurements apart; a curve over ranks changes one of the batches with every point, and may end oversubscribed."""
    batches = [scaling.work(rows[0])] if column == "ranks" else ["batch", "global_batch"]
    rest = [name for name in [*REST, *batches] if name != column and len({row[name] for row in rows}) > 1]
    at_one_x = results.grouped(rows, lambda row: row[column]).values()
    return rest + ["oversubscribed"] * any(len({row["oversubscribed"] for row in mine}) > 1 for mine in at_one_x)


def series(rows):
    """{(run, scalar): [(x, value, seconds since 1970)]}: the median over repeats, and never over different settings."""
    made = {}
    for base, group in results.grouped(rows, run_name).items():
        # Iterations count as x only for curves (a loss at each); elsewhere they only tell how often was timed.
        column = axis([row for row in group if row["loss"] is not None] or [{**row, "iterations": None} for row in group])
        rest = rest_of(group, column)
        for values, mine in results.grouped(group, lambda row: tuple(row[name] for name in rest)).items():
            run = "/".join([base, *(style.slug(name, value) for name, value in zip(rest, values))])
            add_points(made, run, column, mine)
    return made


def add_points(made, run, column, rows):
    for x, mine in sorted(results.grouped(rows, lambda row: row[column] or 0).items()):
        for scalar in SCALARS:
            values = [row[scalar] for row in mine if row[scalar] is not None]
            if values:
                made.setdefault((run, f"{scalar} over {column}"), []).append((x, results.summary(values).median, wall_time(mine[-1]["date"])))


def wall_time(date):
    return calendar.timegm(time.strptime(date, results.DATE))


def to_tensorboard(rows, out):
    """Uses the package's own protocol buffers and record writer: what it wrote, it can read."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise SystemExit(f"export.py: TensorBoard's package is not here ({error}). Install it: .venv/bin/pip install tensorboard") from None
    by_run = {}
    for (run, tag), points in series(rows).items():
        by_run.setdefault(run, []).append((tag, points))
    for run, tags in by_run.items():
        folder = out / run
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "events.out.tfevents.0.manyranks", "wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(wall_time=0, file_version="brain.Event:2").SerializeToString())
            for tag, points in tags:
                for x, value, when in points:
                    writer.write(Event(wall_time=when, step=int(x), summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])).SerializeToString())
            writer.flush()
    print(f"{out}: {len(by_run)} runs, {len(series(rows))} curves. See them: tensorboard --logdir {out}")


def to_wandb(rows, out):
    """One offline run. WANDB_MODE is set before the import, so that not even the import talks to anybody."""
    os.environ.update(WANDB_MODE="offline", WANDB_DISABLE_GIT="true", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
    try:
        import wandb
    except ImportError:
        print("manyranks: skipped (wandb): the package is not here; .venv/bin/pip install wandb", file=sys.stderr)
        return 77
    out.mkdir(parents=True, exist_ok=True)
    config = {column: results.names(rows, column) for column in ("host", "gpu", "commit", "torch", "mpi", "nccl", "kind")}
    run = wandb.init(project="manyranks", dir=str(out), mode="offline", config=config, settings=wandb.Settings(disable_git=True))
    for (name, tag), points in series(rows).items():
        run.define_metric(f"{name}/{tag}", step_metric=f"{name}/x")
        for x, value, _ in points:
            run.log({f"{name}/x": x, f"{name}/{tag}": value})
    run.finish()
    print(f"{out}: an offline run; nothing was sent")
    return 0


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", choices=("tensorboard", "wandb"))
    parser.add_argument("csv", nargs="*", type=pathlib.Path, help="result files, or folders of them (default: results/)")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    chosen = parser.parse_args(words)
    rows, problems = plot.read(chosen.csv or [HERE.parent / "results"])
    for problem in problems:
        print(f"export.py: {problem}", file=sys.stderr)
    if not rows:
        print("export.py: no sound row: nothing to export", file=sys.stderr)
        return 1
    code = to_wandb(rows, chosen.out) if chosen.to == "wandb" else to_tensorboard(rows, chosen.out)
    return code or (1 if problems else 0)


if __name__ == "__main__":
    sys.exit(main())
