"""report.py --paper: each fault that a referee would see is seen, and what is refused leaves nothing behind."""
import json
import unittest

import made_up
import matplotlib
import figures
import test_report
from figures import style
from reporting import paper


class Paper(test_report.Folder):
    def failed(self, rows, family="scaling", least=3):
        (figure,) = [draw() for draw in figures.FAMILIES[family](self.rows(rows))]
        self.addCleanup(figure.close)
        return {check.item for check in paper.checks(figure, least) if not check.good}

    def test_a_sound_figure_passes(self):
        self.assertEqual(self.failed(made_up.scaling()), set())

    def test_each_fault_is_seen(self):
        data = made_up.scaling()
        self.assertEqual(self.failed([row for row in data if row["repeat"] == 1]), {"repeats", "interval shown"})
        self.assertEqual(self.failed(data, least=5), {"repeats"})
        self.assertEqual(self.failed([{**row, "median_s": row["median_s"] * (1, 2, 4)[row["repeat"] - 1]} for row in data]), {"spread"})
        self.assertEqual(self.failed([{**row, "dirty": "true"} for row in data]), {"one machine, one commit, no local changes"})
        self.assertEqual(self.failed([{**row, "commit": "unknown"} for row in data]), {"one machine, one commit, no local changes"})
        self.assertEqual(self.failed([{**row, "host": "b" if row["ranks"] == 2 else "a"} for row in data]), {"one machine, one commit, no local changes"})
        self.assertEqual(self.failed([{**row, "torch": ""} for row in data]), {"where and when"})
        self.assertEqual(self.failed([{**row, "oversubscribed": "true"} for row in data]), {"baseline named"})

    def test_unmarked_oversubscription_and_missing_units(self):
        self.assertEqual(self.failed([{**row, "oversubscribed": "true"} for row in made_up.ladder()], "ladder"), {"baseline named", "oversubscription marked"})
        self.assertEqual(self.failed([{**row, "rate_unit": ""} for row in made_up.ladder()], "ladder"), {"units on the axes"})

    def test_what_waits_or_counts_is_not_called_unmarked(self):
        simulated = [{**row, "kind": "simulated", "oversubscribed": "true"} for row in made_up.ladder()]
        self.assertEqual(self.failed(simulated, "ladder"), {"baseline named"})

    def test_intervals_must_be_drawn_not_promised(self):
        (draw,) = figures.FAMILIES["scaling"](self.rows(made_up.scaling()))
        figure = draw()
        self.addCleanup(figure.close)
        self.assertTrue(all(figure.intervals_shown()))
        ax = figure.figure.axes[1]
        for bars in [drawn for drawn in ax.containers if isinstance(drawn, matplotlib.container.ErrorbarContainer)]:
            bars.remove()
        (check,) = [check for check in paper.checks(figure, 3) if not check.good]
        self.assertEqual((check.item, check.detail), ("interval shown", "no bars: speed-up (times baseline)"))
        self.assertEqual([panel["interval"] for panel in figure.description()["panels"]], [True, False, True])

    def test_repeats_that_are_equal_need_no_bars(self):
        counted = [{**row, "measured": row["predicted"]} for row in made_up.bubbles() if row["kind"] == "measured"]
        self.assertEqual(self.failed(counted, "bubble"), set())

    def test_one_wild_point_among_calm_ones_is_seen(self):
        data = made_up.scaling()
        wild = [{**row, "median_s": row["median_s"] * (1, 2, 4)[row["repeat"] - 1]} if (row["variant"], row["ranks"]) == ("naive", 2) else row for row in data]
        self.assertEqual(self.failed(wild), {"spread"})

    def test_the_baselines_spread_is_told(self):
        (figure,) = [draw() for draw in figures.FAMILIES["scaling"](self.rows(made_up.scaling()))]
        self.addCleanup(figure.close)
        self.assertIn("400 ms per step (384 to 416; this spread is not in the bars of speed-up and efficiency)", style.caption(figure))

    def test_a_refused_figure_leaves_no_number_behind(self):
        once = [row for row in made_up.scaling(workload="vgg11", ranks=(1, 2, 4, 8), cores=8) + made_up.ladder() if row["repeat"] == 1]
        slow = [row for row in made_up.strategies() if row["repeat"] == 1]
        file = made_up.write(self.folder / "p.csv", made_up.scaling(ranks=(1, 2, 4, 8), cores=8) + once + slow + made_up.bandwidth())
        self.report(file, "--paper", code=1)
        told = self.page().split("<h2>Findings</h2>")[1].split("<h2>")[0] + self.page().split("<h2>Fits</h2>")[1]
        for words in ("vgg11", "One device", "Strategies for gpt", "gpt on 4 ranks"):
            self.assertNotIn(words, told)
        for words in ("Strong scaling of resnet18: at 8 ranks", "Amdahl, resnet18, naive (measured)", "<h3>Strong scaling of resnet18</h3>", "all_reduce of 16 MiB on 2 ranks"):
            self.assertIn(words, told)
        self.report(file)
        self.assertIn("Amdahl, vgg11", self.page())

    def test_methods_claim_interleaving_only_with_the_sweeps_journal(self):
        rows = self.rows(made_up.scaling())
        self.assertNotIn("interleaved", paper.methods(rows, []))
        (self.folder / "sweep.journal").write_text(json.dumps({"run_ids": ["r1", "r2", "r3"]}) + "\n")
        self.assertIn("interleaved", paper.methods(rows, []))
        for words in ("test-data", "0testdata0", "LibTorch 2.14.1", "Open MPI 4.1.4", "1 thread(s) per rank", "maximum over ranks"):
            self.assertIn(words, paper.methods(rows, []))

    def test_the_report_refuses_and_names_the_figure(self):
        data = [row for row in made_up.ladder() if row["repeat"] == 1]
        file = made_up.write(self.folder / "p.csv", made_up.bubbles() + data)
        out = self.report(file, "--paper", code=1)
        self.assertIn("ladder_resnet18_cpu: refused for a paper: repeats: 1 at the least repeated point, 3 asked for", out)
        self.assertNotIn('<figure id="ladder_resnet18_cpu"', self.page())
        self.assertIn('<figure id="bubble_bench_bubble_p2"', self.page())
        self.assertIn("Methods", self.page())


if __name__ == "__main__":
    unittest.main()
