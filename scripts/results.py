"""The one strict reader of result files: the CSV format that every program writes (DESIGN.md), checked line by line.

A figure is only as good as its worst row, so a row that is not what it should be is left out and named with file and line,
never guessed at. Plot, report, export and sweep all read through here.
"""
import csv
import dataclasses
import datetime
import io
import math
import pathlib
import re
import statistics

COLUMNS = (
    "chapter lesson variant workload kind scaling device gpu backend transport nodes ranks threads oversubscribed "
    "batch global_batch dtype bytes iterations median_s p95_s rate rate_unit algbw_GBs busbw_GBs sent_bytes peak_bytes "
    "data_wait_s compute_s exposed_comm_s optimizer_s predicted measured unit loss "
    "run_id repeat commit dirty torch nccl mpi driver date host"
).split()
WHOLE = set("nodes ranks threads batch global_batch bytes iterations sent_bytes peak_bytes repeat".split())
REAL = set("median_s p95_s rate algbw_GBs busbw_GBs data_wait_s compute_s exposed_comm_s optimizer_s predicted measured loss".split())
SIGNED = {"loss", "predicted", "measured", "exposed_comm_s"}  # exposed communication is a difference of two times: noise can make it negative
TRUTH = {"oversubscribed", "dirty"}
CHOICES = {"kind": ("measured", "emulated", "simulated", "synthetic"), "scaling": ("strong", "weak", "")}
DATE = "%Y-%m-%dT%H:%M:%SZ"
NEEDED = "chapter lesson kind ranks commit date host".split()
# What makes two rows repeats of one measurement: everything but the figures themselves and where they come from.
SETTING = ("chapter lesson variant workload kind scaling device gpu backend transport nodes ranks threads oversubscribed "
           "batch global_batch dtype bytes rate_unit unit").split()


class Row(dict):
    """A row with typed cells (None where empty), and where it stands."""
    file = pathlib.Path()
    line = 0

    def parameter(self, name):
        """A number given as a word "name=value" in the workload, variant or unit ("gpt m=8"), or None."""
        found = re.search(rf"(?:^|\s){re.escape(name)}=(\d+)(?:\s|$)", f"{self['workload']} {self['variant']} {self['unit']}")
        return int(found.group(1)) if found else None


@dataclasses.dataclass
class Problem:
    file: pathlib.Path
    line: int
    text: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.text}"


@dataclasses.dataclass
class Point:
    """The repeats of one measurement, summed up: the median, and the smallest and largest so that noise shows."""
    median: float
    low: float
    high: float
    n: int


def parse_cell(column, text):
    """The typed value; ValueError with a reason that a person can act on."""
    text = text.strip()
    if column in CHOICES and text not in CHOICES[column]:
        raise ValueError(f"column {column} is '{text}', not one of {', '.join(word for word in CHOICES[column] if word)}")
    if column in NEEDED and not text:
        raise ValueError(f"column {column} is empty")
    if column in TRUTH:
        if text not in ("true", "false", "1", "0", ""):
            raise ValueError(f"column {column} is '{text}', neither true nor false")
        return text in ("true", "1")
    if column == "date":
        try:
            datetime.datetime.strptime(text, DATE)
        except ValueError:
            raise ValueError(f"column date is '{text}', not a time like 2025-03-01T12:00:00Z") from None
    if column not in WHOLE and column not in REAL:
        return text
    if not text:
        return None
    try:
        value = int(text) if column in WHOLE else float(text)
    except ValueError:
        raise ValueError(f"column {column} is '{text}', not a {'whole ' if column in WHOLE else ''}number") from None
    if not math.isfinite(value):
        raise ValueError(f"column {column} is {text}: not a finite number")
    if value < 0 and column not in SIGNED or value == 0 and column in ("ranks", "median_s"):
        raise ValueError(f"column {column} is {text}: too small")
    return value


def header_problem(header):
    """None, or what is wrong with the names of the columns. New ones may stand only before run_id."""
    known = [name for name in header if name in COLUMNS]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        return f"column {missing[0]} is missing" + (f" ({len(missing)} are)" if len(missing) > 1 else "")
    if known != COLUMNS:
        at = next(i for i, name in enumerate(known) if i >= len(COLUMNS) or name != COLUMNS[i])
        return f"column {known[at]} stands where {COLUMNS[at] if at < len(COLUMNS) else 'nothing'} belongs"
    for i, name in enumerate(header):
        if name not in COLUMNS and not header.index("loss") < i < header.index("run_id"):
            return f"unknown column {name or '(no name)'}: new ones go before run_id"
    return None


def read_text(text, file):
    """(rows, problems) of one file's text."""
    file = pathlib.Path(file)
    reader = csv.reader(io.StringIO(text), strict=True)
    rows, problems = [], []
    try:
        header = next(reader, None)
        if not header:
            return [], [Problem(file, 1, "empty file: not even a header")]
        wrong = header_problem(header)
        if wrong:
            return [], [Problem(file, 1, wrong)]
        for cells in reader:
            try:
                rows.append(parse_row(header, cells, file, reader.line_num))
            except ValueError as error:
                problems.append(Problem(file, reader.line_num, str(error)))
    except csv.Error as error:
        problems.append(Problem(file, reader.line_num, f"not CSV: {error}"))
    if not rows and not problems:
        problems.append(Problem(file, 1, "a header and no rows"))
    return rows, problems


def parse_row(header, cells, file, line):
    if cells == header:
        raise ValueError("the header again: two files were glued together")
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells where the header has {len(header)} columns")
    row = Row((name, parse_cell(name, text)) for name, text in zip(header, cells))
    row.file, row.line = file, line
    return row


def is_monitor(file):
    """The other kind of CSV that programs write: samples over time (figures/timeline.py)."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.readline().startswith("time_s,")
    except OSError:
        return False


def read(paths):
    """(rows, problems) of files and of the *.csv in folders, in the order of their names."""
    rows, problems = [], []
    for path in map(pathlib.Path, paths):
        files = [file for file in sorted(path.glob("*.csv")) if not is_monitor(file)] if path.is_dir() else [path]
        if not files:
            problems.append(Problem(path, 0, "no *.csv in this folder"))
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                problems.append(Problem(file, 0, f"cannot be read: {error}"))
                continue
            more, wrong = read_text(text, file)
            rows += more
            problems += wrong
    return rows, problems


def setting(row, without=()):
    return tuple(row[name] for name in SETTING if name not in without)


def grouped(rows, key):
    """{key(row): rows}, in the order of first appearance."""
    groups = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def summary(values):
    values = list(values)
    return Point(statistics.median(values), min(values), max(values), len(values))


def runs(rows):
    """One row for each run of a setting. A program may write several rows of one run that differ in what they predict: they are one measurement, not repeats."""
    return [group[0] for group in grouped(rows, lambda row: (setting(row, without=("unit",)), row["run_id"], row["repeat"])).values()]


def names(rows, column):
    """The distinct values of a column, without empty ones, in order of appearance."""
    return list(dict.fromkeys(row[column] for row in rows if row[column] not in (None, "")))


def mixture(rows):
    """None, or why these rows must not stand in one report: more than one commit or machine."""
    for column, word in (("commit", "commits"), ("host", "hosts"), ("gpu", "GPU models")):
        found = names(rows, column)
        if len(found) > 1:
            return f"{len(found)} {word}: {', '.join(map(str, found))}"
    if len({row["dirty"] for row in rows}) > 1:
        return "clean and changed (dirty) builds of one commit"
    return None
