#!/usr/bin/env python3
"""Turns result files into one self-contained HTML page: findings, machine, figures, fits, tables.

  scripts/report.py                                results/*.csv -> results/report.html
  scripts/report.py --paper                        checks each figure as a referee would, refuses those that fail, writes the methods paragraph
  scripts/report.py --latex tables.tex --markdown report.md

Rows of several commits or machines are refused (exit 65) unless --allow-mixed. Exit 1: something was left out, and the page says what.
"""
import argparse
import dataclasses
import itertools
import os
import pathlib
import sys

import own_python

own_python.need("matplotlib", "numpy")

import figures
import plot
import results
from figures import strategies, style, timeline
from reporting import findings, fits, formats, paper, tables

HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass
class Report:
    title: str
    machine: tables.Table
    problems: list                # what was left out, and why
    findings: list
    figures: list                 # (name, title, caption, png)
    fits: list
    tables: list
    published: tables.Table
    paper: list = dataclasses.field(default_factory=list)   # a checklist per figure
    methods: str = ""


def checklist(figure, checks):
    return tables.Table(f"Checklist: {figure.name}", ("item", "", "detail"), [(check.item, "yes" if check.good else "NO", check.detail) for check in checks])


def build(rows, problems, chosen):
    """The report, and on the way the figures as files where Markdown needs them."""
    report = Report(chosen.title, tables.machine(rows), list(map(str, problems)), [], [], [], [], tables.published_table())
    report.problems += attempt(report, "strategies", lambda: strategies.refused(rows))
    kept = []
    for family, figure in itertools.chain(figures.make(rows), timeline.make(*timeline.found(chosen.csv))):
        if isinstance(figure, Exception):
            report.problems.append(f"{family}: could not be drawn: {plot.told(figure)}")
            continue
        # An id in a page and a file beside it must mean one figure.
        failed = ["two figures of one name"] if figure.name in {name for name, *_ in report.figures} else []
        if chosen.paper and not figure.rows:
            failed.append("its file does not say which commit ran")
        elif chosen.paper:
            checks = paper.checks(figure, chosen.least_repeats)
            failed += [f"{check.item}: {check.detail}" for check in checks if not check.good]
            report.paper.append(checklist(figure, checks))
        if failed:
            report.problems.append(f"{figure.name}: refused{' for a paper' if chosen.paper else ''}: {'; '.join(failed)}")
        else:
            kept.append((family, figure))
            report.figures.append((figure.name, figure.title, style.caption(figure), style.png(figure)))
            if chosen.markdown:
                picture_folder(chosen.markdown).mkdir(parents=True, exist_ok=True)
                style.save(figure, picture_folder(chosen.markdown), ("png",))
        figure.close()
    for family in figures.FAMILIES:
        # What is not good enough for a figure is not good enough for a sentence or a table.
        say(report, family, [row for name, figure in kept if name == family for row in figure.rows] if chosen.paper else rows)
    if chosen.paper:
        report.methods = paper.methods(rows, [figure for _, figure in kept])
    return report


def attempt(report, what, make):
    """A sentence that we cannot make must not cost the reader the page."""
    try:
        return make()
    except Exception as error:
        report.problems.append(f"{what}: could not be computed: {plot.told(error)}")
        return []


def say(report, family, rows):
    """What the rows of one family say beside their figures."""
    report.findings += attempt(report, f"{family}, findings", lambda: findings.FINDERS[family](rows))
    report.tables += attempt(report, f"{family}, tables", lambda: tables.result_tables(family, rows))
    if family == "scaling":
        report.fits += attempt(report, "fits", lambda: [fit.text() for fit in fits.all_fits(rows)])


def picture_folder(markdown):
    return markdown.parent / f"{markdown.stem}_figures"


def write(path, text):
    """Whole or not at all: a reader never sees half a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    print(path)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", nargs="*", type=pathlib.Path, help="result files, or folders of them (default: results/)")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "results" / "report.html")
    parser.add_argument("--title", default="manyranks: what was measured")
    parser.add_argument("--latex", type=pathlib.Path, help="write the tables for LaTeX, too")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the report as Markdown, too")
    parser.add_argument("--allow-mixed", action="store_true", help="let rows of several commits or machines stand together")
    parser.add_argument("--paper", action="store_true", help="refuse figures that a referee would")
    parser.add_argument("--least-repeats", type=int, default=3, help="for --paper")
    return parser.parse_args(words)


def main(words=None):
    chosen = arguments(words)
    chosen.csv = chosen.csv or [HERE.parent / "results"]
    rows, problems = plot.read(chosen.csv)
    mixed = results.mixture(rows)
    for problem in problems:
        print(f"report.py: {problem}", file=sys.stderr)
    if not rows:
        print("report.py: no sound row: nothing to report", file=sys.stderr)
        return 1
    if mixed and not chosen.allow_mixed:
        print(f"report.py: refused: {mixed}. One report is about one build on one machine; --allow-mixed if you know what you do", file=sys.stderr)
        return 65
    report = build(rows, problems, chosen)
    if mixed:
        report.problems.insert(0, f"mixed on request: {mixed}")
    for text in report.problems[len(problems):]:
        print(f"report.py: {text}", file=sys.stderr)
    write(chosen.out, formats.html_page(report))
    if chosen.latex:
        write(chosen.latex, formats.latex(report))
    if chosen.markdown:
        write(chosen.markdown, formats.markdown(report, picture_folder(chosen.markdown).name))
    return 1 if [text for text in report.problems if not text.startswith("mixed on request")] else 0


if __name__ == "__main__":
    sys.exit(main())
