"""report.py: findings and fits are computed, what must not be reported is refused, and each format is whole."""
import contextlib
import html.parser
import io
import re
import unittest

import folder
import made_up
import matplotlib
import report
import results
from figures import style
import figures
from reporting import findings, fits, formats, tables

matplotlib.rcParams["savefig.dpi"] = 50  # nobody looks at these


class Folder(folder.Folder):
    def report(self, *words, code=0):
        """What it printed. In this process: importing matplotlib anew for each call would take longer than the tests."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            returned = report.main([*map(str, words), "--out", str(self.folder / "r.html")])
        self.assertEqual(returned, code, said.getvalue())
        return said.getvalue()

    def page(self):
        return (self.folder / "r.html").read_text()


class Fits(Folder):
    def scaling(self, kind, law, ranks=(1, 2, 4, 8), cores=8):
        made = [{**row, "median_s": law(row["ranks"])} for row in made_up.scaling(kind, ranks=ranks, cores=cores, variants=("v",))]
        return fits.all_fits(self.rows(made))

    def test_amdahl_finds_the_share_that_was_put_in(self):
        (fit,) = self.scaling("strong", lambda n: 2.0 * (0.05 + 0.95 / n))
        self.assertAlmostEqual(fit.share, 0.05, places=9)
        self.assertIn("serial share 5.00%, so at most 20x (4 points", fit.text())

    def test_gustafson_finds_the_share_that_was_put_in(self):
        (fit,) = self.scaling("weak", lambda n: 2.0 * n / (n - 0.1 * (n - 1)))
        self.assertAlmostEqual(fit.share, 0.1, places=9)

    def test_three_points_are_not_fitted(self):
        (fit,) = self.scaling("strong", lambda n: 1 / n, ranks=(1, 2, 4))
        self.assertIsNone(fit.share)
        self.assertIn("not fitted: 3 points are not oversubscribed, 4 are needed", fit.text())

    def test_oversubscribed_points_do_not_count(self):
        (fit,) = self.scaling("strong", lambda n: 1 / n, ranks=(1, 2, 4, 8), cores=2)
        self.assertIn("2 points are not oversubscribed, 4 are needed (2 oversubscribed left out)", fit.text())

    def test_super_linear_times_are_not_fitted(self):
        (fit,) = self.scaling("strong", lambda n: 1 / n**2)
        self.assertIn("do not follow the law", fit.text())

    def test_the_kind_is_named(self):
        self.assertIn("Amdahl, resnet18, v (measured): serial share", self.scaling("strong", lambda n: 0.1 + 0.9 / n)[0].text())
        simulated = [{**row, "kind": "simulated"} for row in made_up.scaling(ranks=(1, 2, 4, 8), cores=8, variants=("v",))]
        both = fits.all_fits(self.rows(simulated + made_up.scaling(ranks=(1, 2, 4, 8), cores=8, variants=("v",))))
        self.assertEqual([fit.text().split(":")[0] for fit in both], ["Amdahl, resnet18, kind simulated, v (simulated)", "Amdahl, resnet18, kind measured, v (measured)"])

    def test_gustafson_needs_one_rank(self):
        (fit,) = self.scaling("weak", lambda n: 1.0, ranks=(2, 3, 4, 5))
        self.assertIn("no run on one rank", fit.text())


class Findings(Folder):
    def find(self, rows, what):
        return what(self.rows(rows))

    def test_scaling_uses_only_fair_points(self):
        texts = self.find(made_up.scaling(ranks=(1, 2, 4), cores=2), findings.scaling_findings)
        self.assertRegex(texts[0], r"at 2 ranks overlapped keeps 94% efficiency, naive 89%, no clear difference: the intervals overlap \(baseline: overlapped on 1 rank\)")
        apart = made_up.scaling(ranks=(1, 2, 4), cores=2, serial=0.2)
        self.assertRegex(self.find(apart, findings.scaling_findings)[0], r"overlapped keeps 83% efficiency, naive 71% \(baseline")
        self.assertIn("more ranks than cores", texts[1])

    def test_exposed_communication(self):
        (text,) = self.find(made_up.scaling(workload="vgg11", ranks=(1, 4), cores=4), findings.step_findings)
        rows = [row for row in made_up.scaling(workload="vgg11", ranks=(4,)) if row["variant"] == "naive" and row["repeat"] == 2]
        share = 100 * float(rows[0]["exposed_comm_s"]) / float(rows[0]["median_s"])
        self.assertRegex(text, rf"At 4 ranks vgg11, strong scaling, loses \d+% \(overlapped\), {share:.0f}% \(naive\) to exposed communication\.")

    def test_bandwidth_names_the_rival_and_sees_overlap(self):
        (text,) = self.find(made_up.bandwidth(), findings.bandwidth_findings)
        self.assertIn("all_reduce of 16 MiB on 2 ranks: registered memory reaches 7.6 GB/s, the best rival (MPI_Allreduce) 1.8 GB/s: 4.2x", text)
        same = [row for row in made_up.bandwidth() if row["variant"] in ("ring", "MPI_Allreduce")]
        for row in same:
            row["busbw_GBs"] = 1.0 + 0.1 * row["repeat"] + (0.05 if row["variant"] == "ring" else 0)
        self.assertIn("no clear difference", self.find(same, findings.bandwidth_findings)[0])

    def test_kind_is_said(self):
        texts = self.find(made_up.bubbles(), findings.bubble_findings)
        self.assertNotIn("(measured)", texts[0])
        self.assertTrue(texts[1].endswith("(synthetic)."))

    def test_ladder_tells_what_lost(self):
        self.assertEqual(self.find(made_up.ladder(), findings.ladder_findings),
                         ["One device, resnet18: 2.60x over baseline with all that was kept; bf16 lost; no clear gain or loss by fused optimiser."])

    def test_ladder_without_gains_claims_none(self):
        rates = [row for row in made_up.ladder() if row["unit"] != "gain"]
        self.assertEqual(self.find(rates, findings.ladder_findings), ["One device, resnet18: no gains recorded, only rates: the fastest is batch 64."])

    def test_no_winner_where_intervals_overlap(self):
        alike = [{**row, "measured": 0.95 + 0.03 * row["repeat"]} if row["unit"] == "gain" else row for row in made_up.ladder()]
        self.assertIn("what was kept is not clearly faster than baseline", self.find(alike, findings.ladder_findings)[0])
        (text,) = self.find(made_up.strategies(), findings.strategy_findings)
        self.assertIn("ddp, zero1, zero2 are the fastest (no clear difference: the intervals overlap), tp4+sp holds the least memory, pp4 moves the fewest bytes", text)
        apart = [{**row, "median_s": row["median_s"] / 2} if row["variant"] == "ddp" else row for row in made_up.strategies()]
        self.assertIn("ddp is the fastest", self.find(apart, findings.strategy_findings)[0])
        counted = [{**row, "sent_bytes": 4096} for row in made_up.strategies()]  # to the byte: no noise to speak of
        self.assertIn("move the fewest bytes (all the same)", self.find(counted, findings.strategy_findings)[0])
        ours = [row for row in made_up.bandwidth() if row["variant"] in ("ring", "rabenseifner")]
        self.assertIn("ring, rabenseifner are the fastest (no clear difference", self.find([{**row, "busbw_GBs": 2 + row["repeat"]} for row in ours], findings.bandwidth_findings)[0])

    def test_unequal_loss_shouts(self):
        wrong = [{**row, "loss": 5.0} if row["variant"] == "zero2" else row for row in made_up.strategies()]
        self.assertIn("LOSS DIFFERS for zero2", self.find(wrong, findings.strategy_findings)[0])
        fastest = [{**row, "loss": 5.0} if row["variant"] == "ddp" else row for row in made_up.strategies()]
        self.assertIn("zero1, zero2 are the fastest (no clear difference: the intervals overlap)", self.find(fastest, findings.strategy_findings)[0])
        out = self.report(made_up.write(self.folder / "wrong.csv", wrong), code=1)
        self.assertIn("zero2 is not shown: its loss is 5, the others' 4.2181", out)
        self.assertIn("zero2 is not shown", self.page())
        self.assertIn("all reach the same loss", self.find(made_up.strategies(), findings.strategy_findings)[0])


class Refusals(Folder):
    def test_mixed_commits_and_machines(self):
        for column in ("commit", "host"):
            file = made_up.write(self.folder / "m.csv", made_up.ladder() + [{**row, column: "another"} for row in made_up.bubbles()])
            self.assertIn("refused: 2", self.report(file, code=65))
            self.assertFalse((self.folder / "r.html").exists())
        self.report(file, "--allow-mixed")
        self.assertIn("mixed on request: 2 hosts: test-data, another", self.page())

    def test_bad_rows_are_named_and_the_rest_comes(self):
        file = made_up.write(self.folder / "b.csv", [{**made_up.ladder()[0], "rate": "inf"}, *made_up.ladder()[1:]])
        self.assertIn("b.csv:2: column rate is inf", self.report(file, code=1))
        self.assertIn("b.csv:2: column rate is inf", self.page())
        self.assertIn('<figure id="ladder_resnet18_cpu"', self.page())

    def test_nothing_to_report(self):
        (self.folder / "e.csv").write_text("")
        self.assertIn("nothing to report", self.report(self.folder / "e.csv", code=1))


class Reader(html.parser.HTMLParser):
    """What a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.images, self.fetched, self.open = [], [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "img":
            self.images.append(attributes)
        for name in ("src", "srcset", "href", "data", "action", "poster"):
            if name in attributes and not attributes[name].startswith(("data:", "#")):
                self.fetched.append(attributes[name])
        if tag in ("script", "link", "iframe", "object", "embed"):
            self.fetched.append(tag)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


class Formats(Folder):
    def test_page_is_whole_and_fetches_nothing(self):
        data = self.folder / "d"
        data.mkdir()
        made_up.write(data / "a.csv", made_up.scaling() + made_up.ladder() + made_up.strategies())
        self.report(data, "--latex", self.folder / "t.tex", "--markdown", self.folder / "m.md")
        reader = Reader()
        reader.feed(self.page())
        self.assertEqual((reader.fetched, reader.open), ([], []))
        rows, _ = results.read([data])
        made = list(figures.make(rows))
        self.assertEqual(len(reader.images), len(made))
        self.assertTrue(all(len(image["alt"]) > 40 for image in reader.images))
        self.assertNotIn("url(", self.page().split("</style>")[0])
        markdown = (self.folder / "m.md").read_text()
        for name in re.findall(r"!\[.*?\]\((.*?)\)", markdown):
            self.assertTrue((self.folder / name).exists(), name)
        self.assertEqual(markdown.count("!["), len(made))
        latex = (self.folder / "t.tex").read_text()
        self.assertEqual(latex.count(r"\begin{tabular}"), latex.count(r"\end{tabular}"))
        for _, figure in made:
            self.assertIn(style.caption(figure)[:60].replace("&", "&amp;"), self.page())
            figure.close()
        for words in ("What others published", "not fitted", "Horovod", "68% scaling efficiency", "Strategies for gpt on 4 ranks"):
            self.assertIn(words, self.page())

    def test_traces_and_monitors_beside_the_results_are_shown(self):
        made_up.write(self.folder / "a.csv", made_up.ladder())
        made_up.trace(self.folder / "gpipe.json")
        made_up.monitor(self.folder / "monitor.csv")
        (self.folder / "other.json").write_text("{}")
        self.report(self.folder)
        self.assertEqual(re.findall(r'<figure id="(\w+)"', self.page()), ["ladder_resnet18_cpu", "gantt_gpipe", "utilisation_monitor"])
        self.assertIn("gantt_gpipe: refused for a paper: its file does not say which commit ran", self.report(self.folder, "--paper", code=1))
        self.assertNotIn('id="gantt_gpipe"', self.page())

    def test_escaping(self):
        table = tables.Table("a_b & c", ("x%",), [("<script>|_",)], "50% #1")
        self.assertIn("&lt;script&gt;", formats.html_table(table))
        self.assertIn(r"<script>\|_", formats.markdown_table(table))
        self.assertIn(r"a\_b \& c. 50\% \#1", formats.latex_table(table))

    def test_hostile_names_stay_text(self):
        bad = [{**row, "workload": "<img src=x onerror=alert(1)>", "host": "<b>"} for row in made_up.ladder()]
        self.report(made_up.write(self.folder / "h.csv", bad))
        self.assertNotIn("<img src=x", self.page())

    def test_published_figures_have_sources(self):
        table = tables.published_table()
        self.assertTrue(all(len(row) == len(table.header) and row[-1] for row in table.rows))


if __name__ == "__main__":
    unittest.main()
