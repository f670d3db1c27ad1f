"""plot.py: axis labels, units and numbers of points, in the description and in matplotlib's own axes, against the CSV they came from."""
import collections
import contextlib
import csv
import io
import json
import unittest

import folder
import made_up
import matplotlib
import matplotlib.image
import numpy
import plot
import results
import figures
from figures import scaling, strategies, style

matplotlib.rcParams["savefig.dpi"] = 50  # nobody looks at these


def csv_rows(path):
    """Counted without our own reader."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def drawn_points(ax, label):
    """Numbers of points and bars that matplotlib holds for a series, found by the id that they were drawn with."""
    lines = sum(len(line.get_xdata()) for line in ax.lines if line.get_gid() == f"points:{label}")
    bars = sum(len(bars.patches) for bars in ax.containers if getattr(bars, "patches", None) and bars.patches[0].get_gid() == f"bars:{label}")
    return lines + bars


class Folder(folder.Folder):
    def figures(self, rows, family):
        made = [draw() for draw in figures.FAMILIES[family](self.rows(rows))]
        for figure in made:
            self.addCleanup(figure.close)
            self.check(figure)
        return made

    def check(self, figure):
        """What the figure says about itself is what matplotlib holds."""
        axes = figure.figure.axes
        self.assertEqual(len(axes), len(figure.panels))
        for ax, panel in zip(axes, figure.panels):
            self.assertEqual(ax.get_xlabel(), panel.x_label)
            self.assertEqual(ax.get_ylabel(), panel.y_label)
            self.assertTrue(panel.unit, figure.name)
            self.assertIn(panel.unit.strip("()"), (panel.x_label + panel.y_label + "x no unit"))
            self.assertTrue(panel.series)
            for label, points in panel.series.items():
                self.assertEqual(drawn_points(ax, label), len(points), (figure.name, label))


class Against(Folder):
    """Each family against the CSV."""

    def test_scaling(self):
        data = made_up.scaling()
        (figure,) = self.figures(data, "scaling")
        self.assertEqual([panel.y_label for panel in figure.panels], ["time per step (ms)", "speed-up (times baseline)", "parallel efficiency (%)"])
        wanted = {variant: len({row["ranks"] for row in data if row["variant"] == variant}) for variant in ("overlapped", "naive")}
        self.assertEqual(figure.description()["panels"][0]["points"], wanted)
        base = numpy.median([float(row["median_s"]) for row in data if row["variant"] == "overlapped" and row["ranks"] == 1])
        at_4 = numpy.median([float(row["median_s"]) for row in data if row["variant"] == "naive" and row["ranks"] == 4])
        self.assertAlmostEqual(dict(figure.panels[0].series["naive"])[4], at_4 * 1e3)
        self.assertAlmostEqual(dict(figure.panels[1].series["naive"])[4], base / at_4)
        self.assertAlmostEqual(dict(figure.panels[2].series["naive"])[4], 100 * base / at_4 / 4)
        self.assertEqual(figure.panels[0].repeats["naive"], [3, 3, 3])
        self.assertIn("overlapped on 1 rank, 400 ms per step", figure.baseline)

    def test_weak_scaling_keeps_the_batch_per_rank(self):
        (figure,) = self.figures(made_up.scaling("weak"), "scaling")
        time = dict(figure.panels[0].series["naive"])
        self.assertAlmostEqual(dict(figure.panels[2].series["naive"])[4], 100 * dict(figure.panels[0].series["overlapped"])[1] / time[4])
        self.assertIn("batch 32 per rank", figure.what)

    def test_a_slow_variant_cannot_shine_by_scaling_itself(self):
        slow = [{**row, "median_s": 2 * row["median_s"], "variant": "slow"} for row in made_up.scaling(variants=("x",))]
        (figure,) = self.figures(slow + made_up.scaling(), "scaling")
        self.assertIn("overlapped on 1 rank", figure.baseline)
        self.assertLess(dict(figure.panels[1].series["slow"])[1], 0.6)

    def test_different_settings_do_not_share_a_figure(self):
        made = self.figures(made_up.scaling() + made_up.scaling(dtype="bfloat16") + made_up.scaling(kind="weak") + made_up.scaling(workload="vgg11"), "scaling")
        self.assertEqual(len(made), 4)
        self.assertEqual(len({figure.name for figure in made}), 4)
        self.assertEqual(len({figure.title for figure in made}), 4)

    def test_kinds_never_mix(self):
        simulated = [{**row, "kind": "simulated"} for row in made_up.scaling()]
        self.assertEqual([results.names(figure.rows, "kind") for figure in self.figures(made_up.scaling() + simulated, "scaling")], [["measured"], ["simulated"]])

    def test_oversubscribed_points_are_hollow(self):
        (figure,) = self.figures(made_up.scaling(), "scaling")
        hollow = [line for line in figure.figure.axes[0].lines if str(line.get_gid()).startswith("points:") and line.get_markerfacecolor() == "white"]
        self.assertEqual([list(line.get_xdata()) for line in hollow], [[4], [4]])
        self.assertIn(style.OVERSUBSCRIBED, [text.get_text() for text in figure.figure.legends[0].get_texts()])
        (figure,) = self.figures(made_up.scaling(cores=8), "scaling")
        self.assertNotIn(style.OVERSUBSCRIBED, [text.get_text() for text in figure.figure.legends[0].get_texts()])

    def test_step(self):
        data = made_up.scaling()
        (figure,) = self.figures(data, "step")
        self.assertEqual(figure.panels[0].y_label, "time per step (ms)")
        bars = len({(row["variant"], row["ranks"]) for row in data})
        self.assertEqual(figure.description()["panels"][0]["points"], {word: bars for word in [*scaling.PARTS.values(), "other"]})
        sums = [sum(points[i][1] for points in figure.panels[0].series.values()) for i in range(bars)]
        totals = sorted({(row["ranks"], row["variant"]): float(row["median_s"]) * 1e3 for row in data if row["repeat"] == 2}.values())
        numpy.testing.assert_allclose(sorted(sums), totals, rtol=1e-6)

    def test_bandwidth(self):
        data = made_up.bandwidth() + made_up.bandwidth(4)
        made = self.figures(data, "bandwidth")
        self.assertEqual([figure.name for figure in made], ["bandwidth_all_reduce_np2", "bandwidth_all_reduce_np4"])
        sizes = collections.Counter(row["variant"] for row in data if row["ranks"] == 2 and row["repeat"] == 1)
        self.assertEqual(made[0].description()["panels"][0]["points"], dict(sizes))
        self.assertEqual((made[0].panels[0].x_label, made[0].panels[0].y_label), ("message size (bytes)", "bus bandwidth (GB/s)"))

    def test_prediction(self):
        data = made_up.predictions()
        (figure,) = self.figures(data, "prediction")
        self.assertEqual((figure.panels[0].x_label, figure.panels[0].y_label), ("predicted (s)", "measured (s)"))
        self.assertEqual(figure.description()["panels"][0]["points"], {"ring": 4, "recursive doubling": 4})
        self.assertIn("median error 7.0%", figure.what)

    def test_bubble(self):
        data = made_up.bubbles()
        made = self.figures(data, "bubble")
        self.assertEqual([figure.name for figure in made], ["bubble_bench_bubble_p2", "bubble_bench_bubble_p4_synthetic"])
        self.assertEqual(made[1].description()["panels"][0]["points"], {"gpipe": 5, "1f1b": 5, "interleaved": 5})
        self.assertEqual(dict(made[0].panels[0].series["gpipe"])[1], 100 * (0.5 + 0.01 + 0.008))
        self.assertIn("Synthetic", style.caption(made[1]))
        self.assertIn("wait instead of computing, so more ranks than cores", style.caption(made[1]))

    def test_bubble_without_named_microbatches(self):
        data = [{**row, "workload": "gpt"} for row in made_up.bubbles()]
        self.assertEqual([m for m, _ in self.figures(data, "bubble")[0].panels[0].series["gpipe"]], [1, 2, 4, 8, 16])

    def test_bubble_with_parameters_in_the_unit(self):
        data = [{**row, "workload": "gpt", "unit": f"bubble {row['workload']}", "batch": "", "global_batch": ""} for row in made_up.bubbles()]
        self.assertEqual([m for m, _ in self.figures(data, "bubble")[0].panels[0].series["gpipe"]], [1, 2, 4, 8, 16])
        self.assertEqual(self.figures(data, "prediction"), [])
        data += [{**row, "unit": row["unit"].replace("v=2", "v=4")} for row in data if row["variant"] == "interleaved"]
        self.assertEqual(list(self.figures(data, "bubble")[0].panels[0].series), ["gpipe", "1f1b", "interleaved, v=2", "interleaved, v=4"])

    def test_held(self):
        data = [{**row, "unit": "held", "predicted": 2.0, "measured": 3.0} for row in made_up.bubbles()]
        made = self.figures(data, "bubble")
        self.assertEqual([figure.name for figure in made], ["held_bench_bubble_p2", "held_bench_bubble_p4_synthetic"])
        self.assertEqual(dict(made[0].panels[0].series["gpipe"])[4], 3.0)
        self.assertEqual(made[0].panels[0].y_label, "held at most (microbatches)")
        self.assertEqual(self.figures(data, "prediction"), [])
        self.assertEqual(self.figures([{**row, "peak_bytes": 2**20} for row in data], "memory"), [])

    def test_memory(self):
        (figure,) = self.figures(made_up.memory(), "memory")
        self.assertEqual(figure.panels[0].y_label, "peak memory per rank (MiB)")
        self.assertEqual(figure.description()["panels"][0]["points"], {"2 ranks": 4, "4 ranks*": 4})
        self.assertAlmostEqual(figure.panels[0].series["2 ranks"][0][1], 16 * 1e6 * 1.03 / 2**20, places=5)

    def test_ladder(self):
        (figure,) = self.figures(made_up.ladder(), "ladder")
        self.assertEqual(figure.panels[0].x_label, "throughput (samples/s)")
        self.assertEqual(figure.description()["panels"][0]["points"], {"rungs": 7})
        self.assertEqual([text.get_text() for text in figure.figure.axes[0].get_yticklabels()][:2], ["baseline", "workers"])
        self.assertIn("56  (1.15x)", [text.get_text() for text in figure.figure.axes[0].texts])

    def test_precision(self):
        (figure,) = self.figures(made_up.precision(), "precision")
        self.assertEqual((figure.panels[0].x_label, figure.description()["panels"][0]["points"]), ("training step", {"float32": 11, "float16": 11, "bfloat16": 11}))
        (figure,) = self.figures([row for row in made_up.precision() if row["iterations"] == 200], "precision")
        self.assertEqual((figure.panels[0].x_label, figure.description()["panels"][0]["points"]), ("precision", {"float32": 1, "float16": 1, "bfloat16": 1}))

    def test_strategies(self):
        (figure,) = self.figures(made_up.strategies(), "strategies")
        self.assertEqual([panel.x_label for panel in figure.panels], ["time per step (ms)", "peak memory per rank (MiB)", "bytes moved per rank (MiB)"])
        self.assertTrue(all(len(points) == 8 for panel in figure.panels for points in panel.series.values()))
        self.assertIn("All reach the same loss", figure.what)
        wrong = [{**row, "loss": 5.0} if row["variant"] == "zero2" else row for row in made_up.strategies()]
        (figure,) = self.figures(wrong, "strategies")
        self.assertIn("Loss differs for zero2: no bars", figure.what)
        self.assertTrue(all(2 not in dict(points) and len(points) == 7 for panel in figure.panels for points in panel.series.values()))
        # The first strategy of the file is no better than the others: if it is the one that differs, it goes.
        wrong = [{**row, "loss": 5.0} if row["variant"] == "ddp" else row for row in made_up.strategies()]
        self.assertEqual([text.split(" is not shown")[0] for text in strategies.refused(self.rows(wrong))], ["strategies_gpt_np4_float32: ddp"])
        for name, is_one in (("tp2+dp2", True), ("zero3", True), ("tp x sp", True), ("naive", False), ("", False), ("tp2+magic", False), ("pp2 dp2 1f1b", True), ("1f1b", False),
                             ("tp2 gpipe", False), ("pp4 zb-h1", True)):
            self.assertEqual(strategies.is_strategy(name), is_one, name)

    def test_rows_of_one_run_are_one_repeat(self):
        data = [{**row, "unit": unit, "predicted": 1.0, "measured": 1.0} for row in made_up.scaling() for unit in ("s/step", "bytes/step", "activation bytes")]
        (figure,) = self.figures(data, "scaling")
        self.assertEqual(figure.panels[0].repeats["naive"], [3, 3, 3])
        (figure,) = self.figures(data, "step")
        self.assertEqual(set(figure.panels[0].repeats["step"]), {3})

    def test_what_is_counted_is_neither_hollow_nor_repeated(self):
        data = [{**row, "kind": "simulated", "oversubscribed": "true", "measured": row["predicted"]} for row in made_up.bubbles() if row["kind"] == "synthetic"]
        (figure,) = self.figures(data, "bubble")
        self.assertNotIn("hollow", " ".join(text.get_text() for legend in figure.figure.legends for text in legend.get_texts()))
        self.assertIn("3 repeats (the same in each)", style.caption(figure))


class CommandLine(Folder):
    def plot(self, *words, code=0):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            returned = plot.main([*map(str, words), "--out", str(self.folder / "out")])
        self.assertEqual(returned, code, said.getvalue())
        return said.getvalue()

    def test_every_figure_is_written_in_every_format_and_not_blank(self):
        data = self.folder / "data"
        data.mkdir()
        made_up.write(data / "a.csv", made_up.scaling())
        self.plot(data)
        listed = json.loads((self.folder / "out" / "figures.json").read_text())
        self.assertEqual([entry["family"] for entry in listed], ["scaling", "step"])
        for entry in listed:
            self.assertGreater(matplotlib.image.imread(self.folder / "out" / f"{entry['name']}.png")[..., :3].std(), 0.02)
            svg = (self.folder / "out" / f"{entry['name']}.svg").read_text()
            self.assertIn("Commit 0testdata0", svg)  # text stays text
            self.assertTrue((self.folder / "out" / f"{entry['name']}.pdf").read_bytes().startswith(b"%PDF"))

    def test_all_families_from_one_folder(self):
        rows, problems = plot.read([made_up.everything(self.folder)])
        made, wrong = plot.draw_all(rows, self.folder / "out", formats=("png",))
        self.assertEqual((problems, wrong), ([], []))
        self.assertEqual({entry["family"] for entry in made}, set(figures.FAMILIES))
        self.assertEqual(len({entry["name"] for entry in made}), len(made))

    def test_bad_rows_are_named_and_the_other_plots_come(self):
        bad = made_up.write(self.folder / "bad.csv", [{**made_up.scaling()[0], "median_s": "nan"}, *made_up.scaling()[1:]])
        empty = self.folder / "empty.csv"
        empty.write_text("")
        good = made_up.write(self.folder / "good.csv", made_up.ladder())
        out = self.plot(bad, empty, good, "--formats", "png", code=1)
        self.assertIn("bad.csv:2: column median_s is nan", out)
        self.assertIn("empty.csv:1: empty file", out)
        self.assertIn("ladder_resnet18_cpu.png", out)
        captions = {entry["name"]: entry["caption"] for entry in json.loads((self.folder / "out" / "figures.json").read_text())}
        self.assertIn("1 unsound rows of the files were left out", captions["strong_scaling_resnet18"])
        self.assertNotIn("unsound", captions["ladder_resnet18_cpu"])

    def test_mixed_commits_are_refused_for_that_figure_alone(self):
        mixed = [{**row, "commit": "other"} if row["ranks"] == 4 else row for row in made_up.scaling()]
        file = made_up.write(self.folder / "mixed.csv", mixed + made_up.ladder())
        out = self.plot(file, "--formats", "png", code=1)
        self.assertIn("strong_scaling_resnet18: would mix 2 commits", out)
        self.assertIn("ladder_resnet18_cpu.png", out)
        self.assertIn("strong_scaling_resnet18.png", self.plot(file, "--formats", "png", "--allow-mixed"))

    def test_nothing_to_draw_is_an_error(self):
        self.assertIn("nothing to draw", self.plot(made_up.write(self.folder / "x.csv", [made_up.row()]), code=1))

    def test_the_same_rows_give_the_same_bytes(self):
        rows = self.rows(made_up.ladder())
        for folder in ("one", "two"):
            plot.draw_all(rows, self.folder / folder)
        for path in sorted((self.folder / "one").iterdir()):
            self.assertEqual(path.read_bytes(), (self.folder / "two" / path.name).read_bytes(), path.name)


if __name__ == "__main__":
    unittest.main()
