"""Pictures over time, from the two files that are not result rows: the trace of a run (Gantt chart) and the monitor's samples.

Neither says which commit ran, so they are for looking, not for publishing. The caption tells what there is to know: the hosts that a
trace names, and the day on which the file was written.
"""
import csv
import datetime
import json
import math
import pathlib
import re

import results
from figures import style

WORDS = (("forward", 0), ("backward", 1), ("weight", 2), ("recompute", 5), ("optim", 3), ("send", 4), ("recv", 4), ("receive", 4), ("reduce", 4), ("gather", 4))
MONITOR = {"cpu_percent": "CPU, whole machine", "process_percent": "this process (100: one core)", "gpu_percent": "GPU"}


class Wrong(Exception):
    """The file is not what it should be."""


def read_trace(path):
    """[(row name, event name, start in ms, length in ms)], rows in the order of rank and lane."""
    try:
        loaded = json.loads(path.read_text())
        events = loaded["traceEvents"] if isinstance(loaded, dict) else loaded
        ranks = {e["pid"]: e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "process_name"}
        lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"}
        spans = sorted((e["pid"], e["tid"], e["ts"] / 1e3, e["dur"] / 1e3, e["name"]) for e in events if e.get("ph") == "X")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Wrong(f"{path}: not a trace: {type(error).__name__}: {error}") from None
    if not spans or any(not math.isfinite(start) or not length >= 0 for _, _, start, length, _ in spans):
        raise Wrong(f"{path}: no complete events, or one with no finite time")
    several = {pid for pid, tid, *_ in spans if len({other for p, other, *_ in spans if p == pid}) > 1}
    name = lambda pid, tid: str(ranks.get(pid, f"rank {pid}")) + (f", {lanes.get((pid, tid), tid)}" if pid in several else "")  # noqa: E731
    return [(name(pid, tid), event, start, length) for pid, tid, start, length, event in spans]


def colour(name):
    """By the kind of action; the same in every chart."""
    lowered = name.lower()
    matching = [index for word, index in WORDS if word in lowered]
    # "backward weight 3" is a weight part, so the last word that matches decides.
    return style.COLOURS[matching[-1]] if matching else "#999999"


def origin(path, hosts):
    """The end of a caption: kind, host, day, file."""
    day = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc).date()
    return f"Measured on {', '.join(hosts) or 'a host that the file does not name'}; {path.name}, written on {day}, commit not recorded."


def draw_gantt(path):
    spans = read_trace(path)
    rows = list(dict.fromkeys(row for row, *_ in spans))
    zero = min(start for _, _, start, _ in spans)
    whole = max(start + length for _, _, start, length in spans) - zero
    panel = style.Panel("time (ms)", "rank", "ms")
    figure, (ax,) = style.axes(1, width=8.0, height=1.2 + 0.42 * len(rows))
    for place, row in enumerate(rows):
        mine = [(event, start - zero, length) for name, event, start, length in spans if name == row]
        ax.barh([place] * len(mine), [length for *_, length in mine], 0.78, [start for _, start, _ in mine], color=[colour(event) for event, *_ in mine],
                edgecolor="white", linewidth=0.4, gid=f"bars:{row}")
        for event, start, length in mine:
            number = re.search(r"(\d+)\s*$", event)
            if number and length > whole * 0.018:
                ax.text(start + length / 2, place, number.group(1), ha="center", va="center", fontsize=7, color="white")
        panel.series[row] = [(start, length) for _, start, length in mine]
    ax.set_yticks(range(len(rows)), rows, fontsize=8)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label, xlim=(0, whole))
    title = f"Timeline, {path.stem}"
    ax.set_title(title, fontsize=10)
    # "forward c1 3" is the forward pass of chunk 1 and microbatch 3.
    kinds = list(dict.fromkeys(re.sub(r"(\s+c\d+)?\W*\d+\W*", " ", event).strip() for _, event, *_ in spans))[:8]
    style.legend_below(figure, [style.Line2D([], [], linestyle="none", marker="s", color=colour(kind), label=kind) for kind in kinds])
    hosts = list(dict.fromkeys(found[1] for row in rows if (found := re.match(r"rank \d+ \((.+?)\)", row))))
    clocks = " Clocks of several hosts may differ." if len(hosts) > 1 else ""
    what = f"{title}: each bar one action, numbers are microbatches.{clocks} {origin(path, hosts)}"
    return style.Figure(style.slug("gantt", path.stem), title, what, [], [panel], figure)


def read_monitor(path):
    """{column: [(seconds, value)]} of the monitor's file; empty cells were not measured."""
    made, reader = {}, None
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if "time_s" not in (reader.fieldnames or []):
                raise Wrong(f"{path}:1: not a monitor's file: no column time_s")
            for row in reader:
                for column in MONITOR:
                    if row.get(column):
                        pair = float(row["time_s"]), float(row[column])
                        if not all(map(math.isfinite, pair)):
                            raise Wrong(f"{path}:{reader.line_num}: {column} is {row[column]}: not a finite number")
                        made.setdefault(column, []).append(pair)
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise Wrong(f"{path}:{reader.reader.line_num if reader else 0}: cannot be read: {error}") from None
    if not made:
        raise Wrong(f"{path}: no samples of {', '.join(MONITOR)}")
    return made


def draw_monitor(path):
    panel = style.Panel("time (s)", "utilisation (%)", "%")
    figure, (ax,) = style.axes(1, width=6.0, height=3.2)
    handles = []
    for index, (column, points) in enumerate(read_monitor(path).items()):
        sign = style.look(index)
        ax.plot(*zip(*points), color=sign["color"], linestyle=sign["linestyle"], linewidth=1.3, marker=sign["marker"], markersize=3, markevery=max(1, len(points) // 12),
                gid=f"points:{MONITOR[column]}")
        handles.append(style.Line2D([], [], linewidth=1.3, label=MONITOR[column], **sign))
        panel.series[MONITOR[column]] = points
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label, ylim=(0, None))
    title = f"Utilisation over time, {path.stem}"
    ax.set_title(title, fontsize=10)
    style.legend_below(figure, handles)
    return style.Figure(style.slug("utilisation", path.stem), title, f"{title}: sampled in the background, each sample the average since the one before. {origin(path, [])}", [], [panel], figure)


def found(paths):
    """(traces, monitors' files) that lie in the folders among the paths, beside the results."""
    folders = [path for path in map(pathlib.Path, paths) if path.is_dir()]
    traces = [path for folder in folders for path in sorted(folder.glob("*.json")) if "traceEvents" in path.read_text(errors="replace")]
    return traces, [path for folder in folders for path in sorted(folder.glob("*.csv")) if results.is_monitor(path)]


def make(traces, monitors):
    """Yields (family, figure), or (family, exception), as figures.make does."""
    for draw, family, paths in ((draw_gantt, "gantt", traces), (draw_monitor, "monitor", monitors)):
        for path in map(pathlib.Path, paths):
            try:
                yield family, draw(path)
            except Exception as error:
                yield family, error


def draw_files(traces, monitors, out, formats):
    """(descriptions, what went wrong)"""
    made, wrong = [], []
    for family, figure in make(traces, monitors):
        if isinstance(figure, Exception):
            wrong.append(str(figure))
            continue
        out.mkdir(parents=True, exist_ok=True)
        style.save(figure, out, formats)
        made.append({"family": family, **figure.description()})
        figure.close()
    return made, wrong
