"""What matplotlib holds against the CSV, read without our own reader: every value, both ends of every error bar, the ideal lines, the labels word for word."""
import collections
import csv
import math
import pathlib
import statistics
import tempfile
import unittest

import made_up
import figures
import results
from figures import style, timeline

STEPS = ("time per step (ms)", "speed-up (times baseline)", "parallel efficiency (%)")
LABELS = {  # family -> (x, y) of each pair of axes, as a reader sees them
    "scaling": [("ranks", y) for y in STEPS],
    "step": [("variant and ranks", "time per step (ms)")],
    "bandwidth": [("message size (bytes)", "bus bandwidth (GB/s)")],
    "prediction": [("predicted (s)", "measured (s)")],
    "bubble": [("microbatches per step", "bubble (% of step idle)")],
    "memory": [("strategy", "peak memory per rank (MiB)")],
    "ladder": [("throughput (samples/s)", "rung (each adds one change)")],
    "precision": [("training step", "loss")],
    "strategies": [("time per step (ms)", "strategy"), ("peak memory per rank (MiB)", ""), ("bytes moved per rank (MiB)", "")],
}


def from_csv(path, key, value, wanted=lambda row: True):
    """{key(row): (median, smallest, largest) of value(row)} of the rows that are wanted; empty cells are none."""
    groups = collections.defaultdict(list)
    with open(path, newline="") as file:
        for row in filter(wanted, csv.DictReader(file)):
            groups[key(row)].append(value(row))
    return {at: (statistics.median(values), min(values), max(values)) for at, values in groups.items()}


def drawn(ax):
    """({series: {(place, value)}}, {(place, low, high)}): points, bars and error bars, whichever way they lie."""
    shown, ends = collections.defaultdict(list), set()
    for line in ax.lines:
        kind, _, label = str(line.get_gid()).partition(":")
        if kind == "points":
            shown[label] += list(zip(line.get_xdata(), line.get_ydata()))
    for container in ax.containers:
        for segments in (part.get_segments() for part in container.lines[2]) if hasattr(container, "lines") else ():
            for (x0, y0), (x1, y1) in segments:
                ends.add(rounded(x0, y0, y1) if x0 == x1 else rounded(y0, x0, x1))
        for bar in getattr(container, "patches", ()):
            upright = container.orientation == "vertical"
            place, value = (bar.get_x() + bar.get_width() / 2, bar.get_height()) if upright else (bar.get_y() + bar.get_height() / 2, bar.get_width())
            shown[bar.get_gid().partition(":")[2]].append((place, value))
    return {label: {rounded(*pair) for pair in pairs} for label, pairs in shown.items()}, ends


def rounded(*values):
    return tuple(float(f"{value:.9g}") for value in values)


class Axes(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.addCleanup(style.plt.close, "all")

    def one(self, family, rows):
        self.file = made_up.write(self.folder / "x.csv", rows)
        (figure,) = [draw() for draw in figures.FAMILIES[family](results.read([self.file])[0])]
        return figure

    def assert_drawn(self, ax, wanted, scale=1.0, places=None):
        """wanted: {(series, x): (median, low, high)} from the CSV; `places`: where a bar stands instead of at x."""
        at = places or (lambda series, x: x)
        shown, ends = drawn(ax)
        points = collections.defaultdict(set)
        for (series, x), (median, _, _) in wanted.items():
            points[series].add(rounded(at(series, x), scale * median))
        self.assertEqual({label: shown[label] for label in points}, points)
        self.assertEqual(ends, {rounded(at(series, x), scale * low, scale * high) for (series, x), (_, low, high) in wanted.items() if high > low})

    def test_labels_and_units_of_every_kind(self):
        for file, rows in enumerate((made_up.scaling(), made_up.bandwidth(), made_up.predictions(), made_up.bubbles(), made_up.memory(), made_up.ladder(), made_up.precision(), made_up.strategies())):
            made_up.write(self.folder / f"{file}.csv", rows)
        seen = set()
        for family, figure in figures.make(results.read([self.folder])[0]):
            with self.subTest(figure=figure.name):
                labels = [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.figure.axes]
                self.assertEqual(labels, [("predicted (bytes)", "measured (bytes)")] if figure.name == "prediction_03_bench_memory_bytes" else LABELS[family])
                for panel, words in zip(figure.panels, map(" ".join, labels)):
                    self.assertTrue(panel.unit)
                    self.assertTrue(f"({panel.unit}" in words or (panel.unit, words) in (("x", "ranks speed-up (times baseline)"), ("(no unit)", "training step loss")), (panel.unit, words))
            seen.add(family)
        self.assertEqual(seen, set(LABELS))
        gantt, monitor = timeline.draw_gantt(made_up.trace(self.folder / "t.json")), timeline.draw_monitor(made_up.monitor(self.folder / "m.csv"))
        self.assertEqual([(figure.figure.axes[0].get_xlabel(), figure.figure.axes[0].get_ylabel()) for figure in (gantt, monitor)], [("time (ms)", "rank"), ("time (s)", "utilisation (%)")])

    def test_scaling(self):
        for kind in ("strong", "weak"):
            figure = self.one("scaling", made_up.scaling(kind))
            times = from_csv(self.file, lambda row: (row["variant"], int(row["ranks"])), lambda row: float(row["median_s"]))
            base = min(times[variant, 1][0] for variant in ("overlapped", "naive"))
            ideal_time = lambda n: base / n if kind == "strong" else base  # noqa: B023, E731
            gain = lambda n, seconds: base / seconds * (1 if kind == "strong" else n)  # noqa: B023, E731
            axes = figure.figure.axes
            self.assert_drawn(axes[0], times, 1e3)
            speedups = {at: (gain(at[1], median), gain(at[1], high), gain(at[1], low)) for at, (median, low, high) in times.items()}
            self.assert_drawn(axes[1], speedups)
            self.assert_drawn(axes[2], {at: tuple(value / at[1] for value in values) for at, values in speedups.items()}, 100)
            for ax, ideal in zip(axes, (lambda n: 1e3 * ideal_time(n), lambda n: n, lambda n: 100)):
                (line,) = [line for line in ax.lines if line.get_gid() == "ideal"]
                self.assertEqual(list(line.get_xdata()), [1, 2, 4])
                self.assertTrue(all(math.isclose(y, ideal(n)) for n, y in zip(line.get_xdata(), line.get_ydata())))  # noqa: B023
            self.assertIn("ideal", [text.get_text() for text in figure.figure.legends[0].get_texts()])

    def test_step(self):
        figure = self.one("step", made_up.scaling())
        ax = figure.figure.axes[0]
        bars = [("overlapped", 1), ("naive", 1), ("overlapped", 2), ("naive", 2), ("overlapped", 4), ("naive", 4)]
        self.assertEqual([text.get_text() for text in ax.get_xticklabels()], [f"{variant}\n{n} rank{'s' if n > 1 else ''}{'*' if n > 2 else ''}" for variant, n in bars])
        place = lambda _, at: bars.index(at)  # noqa: E731
        self.assert_drawn(ax, from_csv(self.file, lambda row: ("step", (row["variant"], int(row["ranks"]))), lambda row: float(row["median_s"])), 1e3, place)
        for column, word in (("compute_s", "compute"), ("exposed_comm_s", "exposed communication"), ("data_wait_s", "data wait"), ("optimizer_s", "optimiser")):
            wanted = from_csv(self.file, lambda row: (row["variant"], int(row["ranks"])), lambda row: float(row[column]))  # noqa: B023
            self.assertEqual(drawn(ax)[0][word], {rounded(bars.index(at), 1e3 * median) for at, (median, *_) in wanted.items()})

    def test_bandwidth(self):
        figure = self.one("bandwidth", made_up.bandwidth())
        self.assert_drawn(figure.figure.axes[0], from_csv(self.file, lambda row: (row["variant"], int(row["bytes"])), lambda row: float(row["busbw_GBs"])))

    def test_prediction(self):
        figure = self.one("prediction", made_up.predictions())
        self.assert_drawn(figure.figure.axes[0], from_csv(self.file, lambda row: (row["variant"], float(row["predicted"])), lambda row: float(row["measured"])))
        (line,) = [line for line in figure.figure.axes[0].lines if line.get_gid() == "ideal"]
        self.assertEqual(list(line.get_xdata()), list(line.get_ydata()))

    def test_bubble(self):
        figure = self.one("bubble", [row for row in made_up.bubbles() if row["kind"] == "measured"])
        ax = figure.figure.axes[0]
        where = lambda row: (row["variant"], int(row["workload"].split("m=")[1].split()[0]))  # noqa: E731
        self.assert_drawn(ax, from_csv(self.file, where, lambda row: float(row["measured"])), 100)
        theory = from_csv(self.file, where, lambda row: float(row["predicted"]))
        for schedule in ("gpipe", "1f1b", "interleaved"):
            (line,) = [line for line in ax.lines if line.get_gid() == f"theory:{schedule}"]
            self.assertEqual({rounded(*pair) for pair in zip(line.get_xdata(), line.get_ydata())}, {rounded(m, 100 * median) for (name, m), (median, *_) in theory.items() if name == schedule})

    def test_memory(self):
        noisy = [{**row, "peak_bytes": row["peak_bytes"] + 1000 * row["repeat"], "run_id": f"r{row['repeat']}"} for row in made_up.memory()]
        figure = self.one("memory", noisy)
        variants = ["overlapped", "zero1", "zero2", "zero3"]
        self.assertEqual([text.get_text() for text in figure.figure.axes[0].get_xticklabels()], variants)
        wanted = from_csv(self.file, lambda row: (f"{row['ranks']} ranks{'*' if row['ranks'] == '4' else ''}", row["variant"]), lambda row: int(row["peak_bytes"]))
        self.assert_drawn(figure.figure.axes[0], wanted, 2**-20, lambda series, variant: variants.index(variant) + (0.2 if series.startswith("4") else -0.2))

    def test_ladder(self):
        figure = self.one("ladder", made_up.ladder())
        rungs = ["baseline", "workers", "channels_last", "fused optimiser", "bf16", "batch 64", "all kept"]
        ax = figure.figure.axes[0]
        self.assert_drawn(ax, from_csv(self.file, lambda row: ("rungs", row["variant"]), lambda row: float(row["rate"]), lambda row: row["rate"]), 1, lambda _, rung: rungs.index(rung))
        # The factor beside a bar is the gain that was timed by turns, never the ratio of two bars.
        self.assertEqual([text.get_text().partition("  ")[2] for text in ax.texts], ["", "(1.60x)", "(1.40x)", "(1.02x)", "(0.80x)", "(1.15x)", "(2.60x)"])
        self.assertEqual([bool(bar.get_hatch()) for bar in ax.patches], [name == "bf16" for name in rungs])

    def test_precision(self):
        figure = self.one("precision", made_up.precision())
        self.assert_drawn(figure.figure.axes[0], from_csv(self.file, lambda row: (row["dtype"], int(row["iterations"])), lambda row: float(row["loss"])))

    def test_strategies(self):
        figure = self.one("strategies", made_up.strategies())
        names = [text.get_text() for text in figure.figure.axes[0].get_yticklabels()]
        self.assertEqual(names, ["ddp", "zero1", "zero2", "zero3", "tp4", "tp4+sp", "pp4", "tp2+dp2"])
        for ax, (word, column, scale) in zip(figure.figure.axes, (("time per step", "median_s", 1e3), ("peak memory per rank", "peak_bytes", 2**-20), ("bytes moved per rank", "sent_bytes", 2**-20))):
            wanted = from_csv(self.file, lambda row: (word, row["variant"]), lambda row: float(row[column]))  # noqa: B023
            self.assert_drawn(ax, wanted, scale, lambda _, name: names.index(name))


if __name__ == "__main__":
    unittest.main()
