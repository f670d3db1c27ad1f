"""Start_Here.ipynb: every cell runs, in order, on stub programs; each figure is shown and is a picture.

Cells are plain Python, so a small runner is enough: no Jupyter is needed to test it. IPython.display is replaced by a recorder.
"""
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import made_up  # noqa: F401  (finds the scripts)
import stub_build

NOTEBOOK = pathlib.Path(__file__).resolve().parent.parent / "Start_Here.ipynb"


class Recorder(types.ModuleType):
    def __init__(self):
        super().__init__("IPython.display")
        self.pictures, self.texts = [], []

    def Image(self, filename):  # noqa: N802
        return self.pictures.append(pathlib.Path(filename).read_bytes())

    def Markdown(self, text):  # noqa: N802
        return self.texts.append(text)

    def display(self, _):
        pass


def execute(notebook, environment):
    """(what was printed, the recorder). An exception in a cell is the test's."""
    recorder, said, names = Recorder(), io.StringIO(), {"__name__": "__main__"}
    with mock.patch.dict(sys.modules, {"IPython": types.ModuleType("IPython"), "IPython.display": recorder}), mock.patch.dict(os.environ, environment), \
            contextlib.redirect_stdout(said), contextlib.chdir(NOTEBOOK.parent):
        for number, cell in enumerate(notebook["cells"], 1):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    return said.getvalue(), recorder


@unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
class Notebook(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.notebook = json.loads(NOTEBOOK.read_text())

    def stops(self):
        return subprocess.run([NOTEBOOK.parent / "tour.sh", "--list"], text=True, stdout=subprocess.PIPE, check=True).stdout.splitlines()

    def run_on(self, build):
        return execute(self.notebook, stub_build.environment(MANYRANKS_BUILD=str(build), MANYRANKS_RESULTS=str(self.folder / "results")))

    def test_every_cell_runs_and_shows_its_figures(self):
        said, shown = self.run_on(stub_build.make(self.folder / "build", ("01_single_gpu/07_ladder",)))
        self.assertIn("Sweep quick: 3 runs to do", said)
        self.assertIn("report.html", said)
        self.assertEqual(len(shown.pictures), sum(text.startswith("### ") for text in shown.texts))
        # Every stop of the tour is named, the one that is built was run, the others are told of.
        self.assertEqual(sum(text.startswith("**") for text in shown.texts), len(self.stops()))
        self.assertEqual(said.count("$ mpirun"), 1)
        (saw,) = [text for text in shown.texts if text.startswith("What you saw: ")]
        self.assertIn("Each rung was checked", saw)
        self.assertEqual(said.count("is not built: cmake"), len(self.stops()) - 1)
        self.assertEqual(len(shown.pictures), len(json.loads((self.folder / "results" / "plots" / "figures.json").read_text())))
        self.assertGreater(len(shown.pictures), 0)
        self.assertTrue(all(picture.startswith(b"\x89PNG") and len(picture) > 5000 for picture in shown.pictures))

    def test_nothing_built_is_told_not_an_error(self):
        said, shown = self.run_on(self.folder / "nothing")
        self.assertIn("is not built", said)
        self.assertIn("not built  02_message_passing/bench_collectives", said)
        self.assertIn("No results yet", said)
        self.assertEqual(shown.pictures, [])

    def test_chapters_come_in_the_order_of_the_tour(self):
        asked = [chapter for cell in self.notebook["cells"] if cell["cell_type"] == "code" for chapter in re.findall(r'^tour\("(\d\d)"\)', "".join(cell["source"]), re.MULTILINE)]
        self.assertEqual(asked, list(dict.fromkeys(stop.split()[0] for stop in self.stops())))
        headings = [line for cell in self.notebook["cells"] for line in cell["source"] if re.match(r"## \d", line)]
        self.assertEqual([int(line.split()[1].strip(".")) for line in headings], list(range(1, len(headings) + 1)))

    def test_what_was_left_out_is_told_and_does_not_stop_it(self):
        """plot.py and report.py end with 1 then, and so may their cells."""
        build = stub_build.make(self.folder / "build", ("01_single_gpu/07_ladder",))
        program = build / "01_single_gpu" / "07_ladder"
        wrong = "made_up.ladder()[::3] + [{**row, 'loss': 9.0} if row['variant'] == 'ddp' else row for row in made_up.strategies()[::3]]"
        program.write_text(program.read_text().replace("made_up.everything_small(pathlib.Path(sys.argv[0]).name, ranks)", wrong))
        said, shown = self.run_on(build)
        self.assertIn("ddp is not shown", said)
        self.assertIn("report.html", said)
        self.assertGreater(len(shown.pictures), 0)

    def test_a_failing_program_stops_it(self):
        build = stub_build.make(self.folder / "build", ("01_single_gpu/07_ladder",))
        (build / "01_single_gpu" / "07_ladder").write_text("#!/bin/sh\nexit 3\n")
        with self.assertRaisesRegex(RuntimeError, "exit code 3"):
            self.run_on(build)

    def test_it_is_committed_clean(self):
        self.assertEqual(self.notebook["nbformat"], 4)
        for cell in self.notebook["cells"]:
            if cell["cell_type"] == "code":
                self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None))


if __name__ == "__main__":
    unittest.main()
