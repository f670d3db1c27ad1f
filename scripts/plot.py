#!/usr/bin/env python3
"""Draws every figure that the result files can give, as PNG, SVG and PDF, with a caption that says what, where, when and which kind.

  scripts/plot.py                                  results/*.csv -> results/plots/
  scripts/plot.py a.csv b.csv --out figures --only scaling,bandwidth
  scripts/plot.py --trace pipeline.json            a Gantt chart of a run's trace (--trace FILE of the program)
  scripts/plot.py --monitor monitor.csv            utilisation over time, as the monitor sampled it

Traces and monitors' files that lie in a folder of results are drawn, too.

Rows that are not sound are named with file and line and left out; the other figures still come, and the exit code is 1.
"""
import argparse
import json
import pathlib
import sys

import own_python

own_python.need("matplotlib", "numpy")

import figures
import results
from figures import strategies, style, timeline

HERE = pathlib.Path(__file__).resolve().parent


def read(paths):
    """(rows, problems); every row knows how many rows of its file were left out, for the caption."""
    rows, problems = results.read(paths)
    for row in rows:
        row.left_out = sum(problem.file == row.file for problem in problems)
    return rows, problems


def told(error):
    """An error without its name says little: KeyError's text is a key."""
    return f"{type(error).__name__}: {error}"


def draw_all(rows, out, families=None, allow_mixed=False, formats=("png", "svg", "pdf")):
    """Draws into the folder `out`. Returns (descriptions, what went wrong)."""
    out.mkdir(parents=True, exist_ok=True)
    made, wrong, taken = [], [], set()
    if not families or "strategies" in families:
        try:
            wrong += strategies.refused(rows)
        except Exception as error:
            wrong.append(f"strategies: {told(error)}")
    for family, figure in figures.make(rows, families):
        if isinstance(figure, Exception):
            wrong.append(f"{family}: could not be drawn: {told(figure)}")
            continue
        mixed = results.mixture(figure.rows)
        if mixed and not allow_mixed:
            wrong.append(f"{figure.name}: would mix {mixed} (--allow-mixed draws it)")
        elif figure.name in taken:
            wrong.append(f"{figure.name}: two figures of one name: their rows differ in a column that the name lacks")
        else:
            taken.add(figure.name)
            style.save(figure, out, formats)
            made.append({"family": family, **figure.description()})
        figure.close()
    return made, wrong


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", nargs="*", type=pathlib.Path, help="result files, or folders of them (default: results/)")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "results" / "plots")
    parser.add_argument("--only", help=f"families, by comma: {', '.join(figures.FAMILIES)}")
    parser.add_argument("--formats", default="png,svg,pdf")
    parser.add_argument("--allow-mixed", action="store_true", help="let one figure show several commits or machines")
    parser.add_argument("--trace", type=pathlib.Path, action="append", default=[], help="draw the Gantt chart of a trace")
    parser.add_argument("--monitor", type=pathlib.Path, action="append", default=[], help="draw utilisation over time")
    chosen = parser.parse_args(words)
    only = chosen.only.split(",") if chosen.only else None
    unknown = set(only or []) - set(figures.FAMILIES)
    formats = chosen.formats.split(",")
    if unknown or set(formats) - {"png", "svg", "pdf"}:
        parser.error(f"unknown: {', '.join(sorted(unknown | set(formats) - {'png', 'svg', 'pdf'}))}")
    paths = chosen.csv or ([] if chosen.trace or chosen.monitor else [HERE.parent / "results"])
    traces, monitors = timeline.found(paths) if not only else ([], [])
    made, wrong = timeline.draw_files([*chosen.trace, *traces], [*chosen.monitor, *monitors], chosen.out, formats)
    if paths:
        rows, problems = read(paths)
        more, bad = draw_all(rows, chosen.out, only, chosen.allow_mixed, formats)
        made, wrong = made + more, wrong + list(map(str, problems)) + bad
    if made:
        (chosen.out / "figures.json").write_text(json.dumps(made, indent=1) + "\n")
    for entry in made:
        print(f"{chosen.out / entry['name']}.{formats[0]}  {entry['title']}")
    for text in wrong:
        print(f"plot.py: {text}", file=sys.stderr)
    if not made:
        print("plot.py: nothing to draw", file=sys.stderr)
    return 1 if wrong or not made else 0


if __name__ == "__main__":
    sys.exit(main())
