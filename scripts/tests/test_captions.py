"""What stands below and beside the curves: captions, labels, looks; and the figures over time, which come from files that are not results."""
import os
import unittest

import made_up
import test_plot
from figures import bandwidth, style, timeline


class OverTime(test_plot.Folder):
    def test_gantt_and_monitor(self):
        figure = timeline.draw_gantt(made_up.trace(self.folder / "gpipe.json"))
        self.addCleanup(figure.close)
        self.check(figure)
        self.assertEqual({label: len(points) for label, points in figure.panels[0].series.items()}, {f"rank {n} (test-data)": 8 for n in range(3)})
        self.assertAlmostEqual(figure.panels[0].series["rank 1 (test-data)"][0][0], 1.0)
        figure = timeline.draw_monitor(made_up.monitor(self.folder / "monitor.csv"))
        self.addCleanup(figure.close)
        self.check(figure)
        self.assertEqual({len(points) for points in figure.panels[0].series.values()}, {39})

    def test_broken_traces_and_monitors_are_named(self):
        for text in ("", "[]", "{}", '{"traceEvents": [{"ph": "X"}]}', "[1]"):
            (self.folder / "t.json").write_text(text)
            with self.subTest(text=text), self.assertRaisesRegex(timeline.Wrong, "t.json"):
                timeline.draw_gantt(self.folder / "t.json")
        for text in ("", "a,b\n1,2\n", "time_s,cpu_percent\n1,nan\n", "time_s,cpu_percent\nx,1\n", "time_s,cpu_percent\n"):
            (self.folder / "m.csv").write_text(text)
            with self.subTest(text=text), self.assertRaisesRegex(timeline.Wrong, "m.csv"):
                timeline.draw_monitor(self.folder / "m.csv")

    def test_a_monitors_bad_line_is_named(self):
        for text, line in (("time_s,cpu_percent\n1,5\nx,1\n", 3), ('time_s,cpu_percent\n1,5\n2,6\n3,"never closed\n', 4)):
            (self.folder / "m.csv").write_text(text)
            with self.subTest(text=text), self.assertRaisesRegex(timeline.Wrong, rf"m\.csv:{line}: cannot be read"):
                timeline.draw_monitor(self.folder / "m.csv")

    def test_captions_of_traces_and_monitors_tell_what_is_known(self):
        trace, monitor = made_up.trace(self.folder / "t.json"), made_up.monitor(self.folder / "m.csv")
        os.utime(trace, (1740830400, 1740830400))
        gantt, samples = timeline.draw_gantt(trace), timeline.draw_monitor(monitor)
        self.addCleanup(gantt.close)
        self.addCleanup(samples.close)
        self.assertIn("Measured on test-data; t.json, written on 2025-03-01, commit not recorded.", style.caption(gantt))
        self.assertNotIn("Clocks of several hosts", style.caption(gantt))
        self.assertIn("Measured on a host that the file does not name; m.csv, written on", style.caption(samples))


class Captions(test_plot.Folder):
    def test_what_where_when_kind_repeats_commit(self):
        (figure,) = self.figures(made_up.scaling(), "scaling")
        text = style.caption(figure)
        for words in ("Strong scaling of resnet18", "Measured on test-data (CPU)", "2025-03-01", "3 repeats (median, bars from smallest to largest)", made_up.COMMIT,
                      "Baseline: overlapped on 1 rank"):
            self.assertIn(words, text)

    def test_one_repeat_says_so_and_a_gpu_is_named(self):
        data = [{**row, "gpu": "NVIDIA X", "device": "cuda", "dirty": "true"} for row in made_up.scaling() if row["repeat"] == 1]
        text = style.caption(self.figures(data, "scaling")[0])
        self.assertIn("1 repeat (no interval)", text)
        self.assertIn("(NVIDIA X)", text)
        self.assertIn("with local changes", text)

    def test_labels_are_short_but_never_ambiguous(self):
        groups = [[{"variant": "a", "backend": "mpi"}], [{"variant": "b", "backend": "mpi"}]]
        self.assertEqual(style.labels_of(groups, ("variant", "backend")), ["a", "b"])
        groups[1][0].update(variant="a", backend="gloo")
        self.assertEqual(style.labels_of(groups, ("variant", "backend")), ["a, mpi", "a, gloo"])

    def test_many_series_differ_in_more_than_colour(self):
        looks = [tuple(style.look(i).values()) for i in range(20)]
        self.assertEqual(len(set(looks)), 20)
        self.assertEqual(len({(marker, line) for _, marker, line in looks}), 20)  # in greyscale too

    def test_bandwidth_labels_name_the_backend_only_where_needed(self):
        rows = self.rows(made_up.bandwidth())
        self.assertEqual(list(bandwidth.series_of(rows)), ["ring", "rabenseifner", "shared memory", "registered memory", "MPI_Allreduce", "gloo"])


if __name__ == "__main__":
    unittest.main()
