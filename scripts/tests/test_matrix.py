"""The strategy matrix on real programs: chapters 04 and 06 train one gpt on one text, and whoever does not reach the common loss is found."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import made_up
import results
from figures import strategies

SCRIPTS = pathlib.Path(made_up.__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("MANYRANKS_BUILD", SCRIPTS.parent / "build"))
SWEEP = """
name = "small matrix"
repeats = 1
[[points]]
program = "04_model_parallel/05_mesh"
ranks = [4]
oversubscribe_to = 4
flags = ["--quick", "--steps", "5", "--dp", "4", "--tp", "1", "--batch", "2"]
over = { zero = [0, 3] }
[[points]]
program = "04_model_parallel/05_mesh"
ranks = [4]
oversubscribe_to = 4
flags = ["--quick", "--steps", "5", "--dp", "2", "--tp", "2", "--sp", "--batch", "4"]
[[points]]
program = "06_pipeline/07_train"
ranks = [4]
oversubscribe_to = 4
flags = ["--quick", "--layers", "2", "--steps", "5", "--stages", "2", "--microbatches", "4", "--batch", "1"]
[[points]]
program = "06_pipeline/07_train"
ranks = [4]
oversubscribe_to = 4
flags = ["--quick", "--layers", "2", "--steps", "5", "--stages", "2", "--tensor", "2", "--microbatches", "4", "--batch", "2"]
[[points]]
program = "06_pipeline/07_train"
ranks = [4]
oversubscribe_to = 4
flags = ["--quick", "--layers", "2", "--steps", "5", "--stages", "2", "--microbatches", "4", "--batch", "1", "--rate", "0.002", "--schedule", "gpipe"]
"""


class Matrix(unittest.TestCase):
    def test_all_strategies_reach_one_loss_and_another_training_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            sweep = pathlib.Path(folder) / "small.toml"
            sweep.write_text(SWEEP)
            out = pathlib.Path(folder) / "out"
            done = subprocess.run([sys.executable, str(SCRIPTS / "sweep.py"), str(sweep), "--build", str(BUILD), "--results", str(out), "--allow-mixed"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            rows, problems = results.read([out])
        self.assertEqual(problems, [])
        (group,) = strategies.groups_of(rows)
        entries = {entry["strategy"]: entry for entry in strategies.table(group)}
        # The last one trains with another learning rate: the comparison must see it.
        self.assertEqual({name: entry["equal"] for name, entry in entries.items()},
                         {"dp4": True, "dp4 zero3": True, "tp2 dp2 sp": True, "pp2 dp2 1f1b": True, "pp2 tp2 1f1b": True, "pp2 dp2 gpipe": False})
        for name, entry in entries.items():
            self.assertIsNotNone(entry["peak_bytes"], name)
            self.assertIsNotNone(entry["sent_bytes"], name)
        self.assertLess(entries["dp4 zero3"]["peak_bytes"].median, entries["dp4"]["peak_bytes"].median)


if __name__ == "__main__":
    unittest.main()
