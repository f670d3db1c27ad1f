"""May this figure be printed? A list in the spirit of Hoefler and Belli, "Scientific Benchmarking of Parallel Computing Systems" (SC15)."""
import dataclasses
import pathlib
import re

import results
from figures import style


WIDEST = 0.5  # repeats that lie further apart than half of their median measure the machine's mood, not the program


@dataclasses.dataclass
class Check:
    item: str
    good: bool
    detail: str


def all_text(figure):
    legends = [text.get_text() for legend in figure.figure.legends for text in legend.get_texts()]
    return " ".join([style.caption(figure), figure.title, *legends])


def checks(figure, least_repeats):
    rows = figure.rows
    n = figure.least_repeats()
    # Who waits or counts instead of computing takes no core from anybody.
    over = any(row["oversubscribed"] for row in rows if row["kind"] == "measured")
    marked = "more ranks than cores" in all_text(figure)
    kinds = results.names(rows, "kind")
    spread = max((value for panel in figure.panels for value in panel.spreads), default=0.0)
    bare = [panel.y_label or panel.x_label for panel, shown in zip(figure.panels, figure.intervals_shown()) if not shown and any(panel.spreads)]
    unnamed = [panel.y_label for panel in figure.panels if not panel.unit]
    mixed = results.mixture(rows)
    dirty = any(row["dirty"] for row in rows)
    commits = results.names(rows, "commit")
    base_over = figure.relative and figure.baseline_oversubscribed
    missing = [word for word, column in (("LibTorch's version", "torch"), ("the device", "device")) if not results.names(rows, column)]
    return [
        Check("baseline named", not figure.relative or bool(figure.baseline) and not base_over,
              "no speed-ups shown" if not figure.relative else f"the baseline is oversubscribed: {figure.baseline}" if base_over else figure.baseline or "speed-ups against nothing"),
        Check("repeats", n >= least_repeats, f"{n} at the least repeated point, {least_repeats} asked for"),
        Check("interval shown", n > 1 and not bare, "one repeat has no interval" if n < 2 else f"no bars: {', '.join(bare)}" if bare else "smallest to largest"),
        Check("spread", spread <= WIDEST, f"{100 * spread:.0f}% of the median from the smallest to the largest repeat, at the widest point; at most {100 * WIDEST:.0f}% asked for"),
        Check("units on the axes", not unnamed, f"no unit: {', '.join(unnamed)}" if unnamed else "yes"),
        Check("oversubscription marked", not over or marked, "marked" if over and marked else "NOT marked" if over else "none"),
        Check("kind said, not mixed", len(kinds) == 1, ", ".join(kinds)),
        Check("what is modelled is named", "ideal" not in all_text(figure) and "theory" not in all_text(figure) or bool(figure.modelled), figure.modelled or "nothing modelled"),
        Check("one machine, one commit, no local changes", not mixed and not dirty and commits != ["unknown"],
              mixed or ("built with local changes" if dirty else f"commit {', '.join(commits)}")),
        Check("where and when", not missing, f"not recorded: {', '.join(missing)}" if missing else f"{', '.join(results.names(rows, 'host'))}, {rows[0]['date'][:10]}"),
    ]


def interleaved(rows):
    """True only if a sweep's journal, which interleaves repeats, lists every run: the rows alone cannot show it."""
    known = set()
    for folder in {pathlib.Path(row.file).parent for row in rows}:
        journal = folder / "sweep.journal"
        if journal.exists():
            known |= set(re.findall(r'"([^"]*)"', " ".join(re.findall(r'"run_ids": \[(.*?)\]', journal.read_text()))))
    return {row["run_id"] for row in rows} <= known


def methods(rows, figures):
    """The methods paragraph: only what the rows, or the rules that every program keeps, can vouch for."""
    listed = lambda column: " and ".join(str(value) for value in results.names(rows, column))  # noqa: E731
    counts = [figure.least_repeats() for figure in figures] or [0]
    parts = [f"All runs were made on {listed('host')} ({listed('gpu') or 'CPU only'}, {listed('nodes') or '1'} node(s)) between {min(row['date'] for row in rows)[:10]} and "
             f"{max(row['date'] for row in rows)[:10]}, with commit {listed('commit')} of manyranks, LibTorch {listed('torch')}"
             + (f", {listed('mpi')}" if listed("mpi") else "") + (f", NCCL {listed('nccl')}" if listed("nccl") else "") + f", and {listed('threads')} thread(s) per rank.",
             "Each program first compared its distributed result with a serial reference and timed only what agreed.",
             "The time of a step is the maximum over ranks; a run gives the median over its steps after warm-up.",
             f"Each point was repeated at least {min(counts)} times" + (" in separate runs, the repeats of all points interleaved" if interleaved(rows) else "")
             + "; figures show the median over repeats, and bars from the smallest to the largest repeat."]
    if any(figure.relative for figure in figures):
        parts.append("Speed-up and efficiency are relative to the fastest variant on the fewest ranks, which each figure names with its absolute time.")
    if any(row["oversubscribed"] for row in rows):
        parts.append("Runs with more ranks than cores or GPUs are marked and entered no fit.")
    others = [word for word in results.names(rows, "kind") if word != "measured"]
    if others:
        parts.append(f"Some figures are {' or '.join(others)}, not measured; their captions say so.")
    return " ".join(parts)
