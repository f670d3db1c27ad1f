"""Which rows stand together: different settings are never repeats of each other, no figure hides another, and what fails takes nothing with it."""
import collections
import contextlib
import io
import unittest
from unittest import mock

import folder
import made_up
import matplotlib
import export
import figures
import plot
import report
from figures import scaling, strategies, style
from reporting import findings, tables

matplotlib.rcParams["savefig.dpi"] = 50  # nobody looks at these


class Folder(folder.Folder):
    def figures(self, rows, family):
        made = [draw() for draw in figures.FAMILIES[family](self.rows(rows))]
        for figure in made:
            self.addCleanup(figure.close)
        return made

    def report(self, rows, *words, code=0):
        said = io.StringIO()
        file = made_up.write(self.folder / "x.csv", rows)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            self.assertEqual(report.main([str(file), "--out", str(self.folder / "r.html"), *map(str, words)]), code, said.getvalue())
        return said.getvalue(), (self.folder / "r.html").read_text()


class NoCommonLoss(Folder):
    def with_losses(self, *losses):
        """Strategies in the order of the file, with these losses."""
        names = list(dict.fromkeys(row["variant"] for row in made_up.strategies()))[:len(losses)]
        return [{**row, "loss": losses[names.index(row["variant"])]} for row in made_up.strategies() if row["variant"] in names]

    def equal(self, *losses):
        return [entry["equal"] for entry in strategies.table(self.rows(self.with_losses(*losses)))]

    def test_two_must_agree_before_anything_is_equal(self):
        self.assertEqual(self.equal(1.0, 2.0, 3.0), [False] * 3)
        self.assertEqual(self.equal(1.0, 2.0), [False] * 2)
        self.assertEqual(self.equal(1.0, 1.0, 3.0, 4.0, 5.0), [True, True, False, False, False])  # the middle one is not the common one
        self.assertEqual(self.equal(1.0, 1.0, 3.0, 3.0), [False] * 4)                             # two against two: who is right?

    def test_one_repeat_that_differs_is_no_agreement(self):
        data = [{**row, "loss": 5.0 if row["repeat"] == 2 else 4.0} for row in made_up.strategies()]
        self.assertFalse(any(entry["equal"] for entry in strategies.table(self.rows(data))))
        alone = [{**row, "loss": 4.0} if row["variant"] == "zero1" else row for row in data]  # steady, but nobody agrees with it in every repeat
        self.assertFalse(any(entry["equal"] for entry in strategies.table(self.rows(alone))))

    def test_it_is_said_and_the_rest_of_the_report_comes(self):
        data = self.with_losses(1.0, 2.0, 3.0)
        self.assertEqual(self.figures(data, "strategies"), [])
        self.assertIn("no common loss", strategies.refused(self.rows(data))[0])
        self.assertIn("NO COMMON LOSS (ddp 1, zero1 2, zero2 3)", findings.strategy_findings(self.rows(data))[0])
        (table,) = tables.result_tables("strategies", self.rows(data))
        self.assertEqual({row[5] for row in table.rows}, {"NO COMMON LOSS"})
        said, page = self.report(data + made_up.ladder(), code=1)
        self.assertIn("no common loss", said)
        self.assertIn('<figure id="ladder_resnet18_cpu"', page)

    def test_a_column_that_only_the_wrong_one_has_gets_no_empty_axes(self):
        data = [{**row, "loss": 9.0} if row["variant"] == "ddp" else {**row, "sent_bytes": ""} for row in made_up.strategies()]
        (figure,) = self.figures(data, "strategies")
        self.assertEqual([panel.x_label for panel in figure.panels], ["time per step (ms)", "peak memory per rank (MiB)"])


class Settings(Folder):
    """Rows that differ in a setting never become repeats of one point."""

    def assert_apart(self, family, data, column, value):
        """Twice the rows, differing in one column alone: twice the figures or curves, each with 3 repeats, and no name twice."""
        data = data + [{**row, column: value} for row in data]
        made = self.figures(data, family)
        counts = {n for figure in made for panel in figure.panels for series in panel.repeats.values() for n in series}
        self.assertEqual(counts, {3}, (family, column))
        names = [figure.name for figure in made]
        self.assertEqual(len(set(names)), len(names), names)
        style.plt.close("all")

    def test_memory(self):
        data = [{**row, "batch": 8, "unit": "", "run_id": f"r{row['repeat']}"} for row in made_up.memory()]
        for column, value in (("scaling", "weak"), ("batch", 16), ("threads", 2), ("dtype", "bfloat16"), ("kind", "simulated"), ("gpu", "X"), ("device", "cuda"),
                              ("lesson", "another"), ("backend", "gloo"), ("workload", "mlp")):
            self.assert_apart("memory", data, column, value)

    def test_pipeline(self):
        for column, value in (("ranks", 8), ("gpu", "X"), ("dtype", "bfloat16"), ("threads", 2), ("device", "cuda"), ("lesson", "another"), ("transport", "tcp")):
            self.assert_apart("bubble", made_up.bubbles(), column, value)

    def test_pipeline_of_another_model(self):
        data = [{**row, "workload": f"gpt {row['workload']}"} for row in made_up.bubbles()]
        made = self.figures(data + [{**row, "workload": row["workload"].replace("gpt", "mlp")} for row in data], "bubble")
        self.assertEqual(sorted(figure.name for figure in made),
                         sorted(f"bubble_bench_bubble_{p}_{model}" for p in ("p2", "p4_synthetic") for model in ("gpt", "mlp")))

    def test_what_is_counted_may_be_counted_anywhere(self):
        data = [{**row, "kind": "simulated"} for row in made_up.bubbles() if row["kind"] == "synthetic"]
        (figure,) = self.figures(data + [{**row, "ranks": 8} for row in data], "bubble")
        self.assertEqual(set(figure.panels[0].repeats["gpipe"]), {6})

    def test_strategies(self):
        for column, value in (("global_batch", 64), ("threads", 2), ("kind", "simulated"), ("gpu", "X"), ("workload", "gpt C=192 L=4 T=96"), ("dtype", "bfloat16"), ("ranks", 8)):
            self.assert_apart("strategies", made_up.strategies(), column, value)

    def test_ladder_and_precision(self):
        for column, value in (("kind", "emulated"), ("gpu", "X"), ("threads", 2), ("rate_unit", "tokens/s")):
            self.assert_apart("ladder", made_up.ladder(), column, value)
        for column, value in (("kind", "emulated"), ("gpu", "X"), ("threads", 2), ("batch", 4), ("device", "cuda")):
            self.assert_apart("precision", made_up.precision(), column, value)

    def test_a_model_with_its_size_in_the_name(self):
        sized = [{**row, "workload": "gpt C=192 L=4 T=96"} for row in made_up.strategies()]
        (figure,) = self.figures(sized, "strategies")
        self.assertEqual((figure.name, figure.title.split(" on ")[0]), ("strategies_gpt_c_192_l_4_t_96_np4_float32", "Strategies for gpt C=192 L=4 T=96"))
        # Another size trains another model: its loss is no comparison, and it is no repeat.
        other = [{**row, "workload": "gpt C=48 L=2 T=24", "loss": 5.5} for row in made_up.strategies()]
        self.assertEqual(len(self.figures(sized + other, "strategies")), 2)
        self.assertEqual(strategies.refused(self.rows(sized + other)), [])

    def test_bubble_findings_say_oversubscribed(self):
        data = [{**row, "oversubscribed": "true"} for row in made_up.bubbles()]
        texts = findings.bubble_findings(self.rows(data))
        self.assertIn("microbatches, oversubscribed).", texts[0])
        self.assertNotIn("oversubscribed", texts[1])  # synthetic: stages that wait share a core without harm
        self.assertNotIn("oversubscribed", findings.bubble_findings(self.rows(made_up.bubbles()))[0])

    def test_export_takes_no_median_over_settings(self):
        for column, value in (("unit", "bytes"), ("rate_unit", "tokens/s"), ("batch", 4), ("global_batch", 128), ("oversubscribed", "true")):
            data = [{**row, "batch": 2, "global_batch": 8, "rate": 3.0} for row in made_up.predictions()]
            other = [{**row, column: value, "measured": 1e6} for row in data]
            with self.subTest(column=column):
                made = export.series(self.rows(data + other))
                curves = {run: points for (run, tag), points in made.items() if tag.startswith("measured")}
                self.assertEqual(len(curves), 4)  # two variants, each once per value
                self.assertTrue(all(len({value == 1e6 for _, value, _ in points}) == 1 for points in curves.values()), curves)

    def test_export_keeps_a_curve_over_ranks_whole(self):
        made = export.series(self.rows(made_up.scaling()))
        self.assertEqual({len(points) for points in made.values()}, {3})
        two = export.series(self.rows(made_up.scaling() + [{**row, "global_batch": 2 * row["global_batch"], "batch": 2 * row["batch"]} for row in made_up.scaling()]))
        self.assertEqual((len(two), {len(points) for points in two.values()}), (2 * len(made), {3}))


class Collisions(Folder):
    def test_a_second_figure_of_one_name_is_refused_by_plot_and_report(self):
        data = made_up.strategies() + made_up.strategies(ranks=2)
        with mock.patch.object(strategies, "name_of", lambda rows, groups: "same"):
            said, page = self.report(data, "--markdown", self.folder / "r.md", code=1)
            made, wrong = plot.draw_all(self.rows(data), self.folder / "out", ["strategies"], formats=("png",))
        self.assertEqual(page.count('<figure id="same"'), 1)
        self.assertEqual((self.folder / "r.md").read_text().count("/same.png)"), 1)
        self.assertIn("same: refused: two figures of one name", said)
        self.assertEqual((len(made), len(wrong)), (1, 1))
        self.assertIn("two figures of one name", wrong[0])


class Failures(Folder):
    def test_one_figure_that_fails_costs_no_other(self):
        real, data = scaling.draw, made_up.scaling() + made_up.scaling(workload="vgg11") + made_up.scaling(workload="gpt")

        def draw(rows, words):
            if rows[0]["workload"] == "vgg11":
                style.axes(1)
                raise TypeError("a defect of ours")
            return real(rows, words)

        with mock.patch.object(scaling, "draw", draw):
            made, wrong = plot.draw_all(self.rows(data), self.folder / "out", formats=("png",))
            said, page = self.report(data, code=1)
        families = collections.Counter(entry["family"] for entry in made)
        self.assertEqual(families, {"scaling": 2, "step": 3})
        self.assertEqual(wrong, ["scaling: could not be drawn: TypeError: a defect of ours"])
        self.assertIn("scaling: could not be drawn: TypeError: a defect of ours", said)
        self.assertIn('<figure id="strong_scaling_gpt"', page)
        self.assertEqual(style.plt.get_fignums(), [])

    def test_a_family_that_cannot_even_group_its_rows(self):
        with mock.patch.dict(figures.FAMILIES, {"ladder": lambda rows: {}["no such key"]}):
            made, wrong = plot.draw_all(self.rows(made_up.ladder() + made_up.bubbles()), self.folder / "out", formats=("png",))
        self.assertEqual({entry["family"] for entry in made}, {"bubble"})
        self.assertEqual(wrong, ["ladder: could not be drawn: KeyError: 'no such key'"])

    def test_a_finding_that_fails_costs_no_page(self):
        def broken(_):
            raise IndexError("a defect of ours")

        with mock.patch.dict(findings.FINDERS, ladder=broken):
            said, page = self.report(made_up.ladder() + made_up.bubbles(), code=1)
        self.assertIn("ladder, findings: could not be computed: IndexError: a defect of ours", said)
        self.assertIn("the bubble differs from theory", page)


if __name__ == "__main__":
    unittest.main()
