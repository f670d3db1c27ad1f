"""export.py: the real tensorboard package reads back what was written, value for value."""
import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import made_up
import export
import results


class Export(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def export(self, rows, to="tensorboard", code=0):
        said = io.StringIO()
        file = made_up.write(self.folder / "x.csv", rows)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            self.assertEqual(export.main([to, str(file), "--out", str(self.folder / "out")]), code, said.getvalue())
        return said.getvalue()

    def test_axes(self):
        made = lambda rows: set(tag.split(" over ")[1] for _, tag in export.series(results.read([made_up.write(self.folder / "x.csv", rows)])[0]))  # noqa: E731
        self.assertEqual(made(made_up.scaling()), {"ranks"})
        self.assertEqual(made(made_up.bandwidth()), {"bytes"})
        self.assertEqual(made(made_up.precision()), {"iterations"})

    def test_different_settings_are_different_runs(self):
        rows, _ = results.read([made_up.write(self.folder / "x.csv", made_up.bandwidth() + made_up.bandwidth(4))])
        made = export.series(rows)
        self.assertEqual(len(made), 2 * 6 * 4)  # ranks, variants, scalars
        self.assertTrue(all(len(points) == 8 for points in made.values()))
        self.assertIn(("02/bench_collectives/all_reduce/ring/none/float32/ranks_4", "busbw_GBs over bytes"), made)

    def test_tensorboard_reads_it_back(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        data = made_up.bandwidth()
        self.export(data)
        read = EventAccumulator(str(self.folder / "out" / "02" / "bench_collectives" / "all_reduce" / "ring" / "none" / "float32"))
        read.Reload()
        events = read.Scalars("busbw_GBs over bytes")
        wanted = [(row["bytes"], row["busbw_GBs"]) for row in data if row["variant"] == "ring" and row["repeat"] == 2]  # the middle one of three
        self.assertEqual([event.step for event in events], [size for size, _ in wanted])
        for event, (_, value) in zip(events, wanted):
            self.assertAlmostEqual(event.value / float(value), 1, places=5)
        self.assertEqual(events[0].wall_time, 1740830400)  # 2025-03-01T12:00:00Z

    def test_bad_rows_are_named(self):
        self.assertIn("x.csv:2: column loss is nan", self.export([made_up.row(loss="nan"), *made_up.ladder()], code=1))

    def test_wandb_is_told_to_report_nothing_before_it_is_imported(self):
        with mock.patch.dict(os.environ), mock.patch.dict(sys.modules, wandb=None):  # None: the import fails
            self.export(made_up.ladder(), "wandb", code=77)
            self.assertEqual((os.environ["WANDB_MODE"], os.environ["WANDB_ERROR_REPORTING"]), ("offline", "false"))

    def test_wandb_offline_or_a_skip_that_says_so(self):
        try:
            import wandb  # noqa: F401
        except ImportError:
            self.assertIn("manyranks: skipped (wandb)", self.export(made_up.ladder(), "wandb", code=77))
            return
        self.assertIn("nothing was sent", self.export(made_up.ladder(), "wandb"))
        self.assertEqual(os.environ["WANDB_MODE"], "offline")
        self.assertTrue(list((self.folder / "out").rglob("run-*.wandb")))


if __name__ == "__main__":
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        print("manyranks: skipped (tensorboard): the package is not here; .venv/bin/pip install tensorboard", file=sys.stderr)
        sys.exit(1 if "tensorboard" in os.environ.get("MANYRANKS_REQUIRE", "").split(",") else 77)
    unittest.main()
