"""What the lessons leave behind can be read by those it is for: TensorBoard, Perfetto, a spreadsheet."""
import csv
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

CHAPTER = pathlib.Path(os.environ["MANYRANKS_BUILD"]) / "01_single_gpu"


def run(lesson, *arguments, code=0):
    result = subprocess.run([CHAPTER / lesson, "--quick", *arguments], capture_output=True, text=True, timeout=100)
    assert result.returncode == code, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr


class Outputs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def rows(self, name):
        with open(self.folder / name, newline="") as file:
            return list(csv.DictReader(file))

    def test_baseline(self):
        output = run("01_baseline", "--csv", f"{self.folder}/a.csv", "--monitor", f"{self.folder}/monitor.csv", "--tensorboard", f"{self.folder}/board")
        (row,) = self.rows("a.csv")
        self.assertEqual((row["chapter"], row["lesson"], row["variant"], row["kind"], row["batch"]), ("01_single_gpu", "01_baseline", "baseline", "measured", "4"))
        self.assertAlmostEqual(float(row["rate"]) * float(row["median_s"]), 4, places=6)
        self.assertLess(0, float(row["data_wait_s"]) / float(row["median_s"]))
        samples = self.rows("monitor.csv")
        self.assertTrue(samples and all(float(sample["process_bytes"]) > 1e6 for sample in samples))
        self.assertIn("monitor: cpu", output)
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            return  # common.tensorboard.python skips for that reason, and says so
        board = EventAccumulator(f"{self.folder}/board")
        board.Reload()
        losses = board.Scalars("loss")
        self.assertEqual([event.step for event in losses], list(range(3, 3 + len(losses))))  # three steps were verified before
        self.assertTrue(losses and all(0 < event.value < 20 for event in losses))

    def test_profile(self):
        output = run("02_profile", "--trace", f"{self.folder}/trace.json", "--spec-gflops", "1000")
        self.assertIn("of the specified", output)
        events = [event for event in json.loads((self.folder / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
        steps = [event for event in events if event["name"] == "step"]
        self.assertEqual(len(steps), 6)  # three verified, three timed
        for step in steps:  # the parts lie inside the step, in order, and do not overlap
            inside = sorted((event for event in events if event["name"] != "step" and step["ts"] <= event["ts"] < step["ts"] + step["dur"]), key=lambda event: event["ts"])
            self.assertEqual([event["name"] for event in inside], ["data", "copy", "forward", "backward", "optimiser"])
            for before, after in zip(inside, inside[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 1)
            self.assertLessEqual(sum(event["dur"] for event in inside), step["dur"] + 1)

    def test_ladder(self):
        run("07_ladder", "--csv", f"{self.folder}/a.csv")
        rows = self.rows("a.csv")
        rates, gains = [row for row in rows if row["rate"]], [row for row in rows if row["unit"] == "gain"]
        names = ["baseline", "+ 1 loader worker(s)", "+ channels_last", "+ fused optimiser", "+ batch 8", "+ bfloat16"]
        self.assertEqual([row["variant"] for row in rates][:6], names)
        self.assertEqual([row["variant"] for row in gains][:5], names[1:])
        self.assertEqual([row["variant"] for row in (rates[-1], gains[-1])], ["all kept"] * 2)
        self.assertTrue(all(float(row["measured"]) > 0 for row in gains))
        self.assertEqual(rows[-1]["variant"], "all kept")
        self.assertEqual({row["dtype"] for row in rates if row["variant"] == "+ bfloat16"}, {"bfloat16"})

    def test_batch_larger_than_the_data(self):
        result = subprocess.run([CHAPTER / "01_baseline", "--quick", "--batch", "1000"], capture_output=True, text=True, timeout=100)
        self.assertEqual(result.returncode, 64, result.stderr)
        self.assertIn("32 samples do not fill one batch of 1000", result.stderr)

    def test_real_data_takes_the_same_path(self):
        """MNIST's four files, with a digit that is a bright row: read, loaded, trained on and scored on the other split."""
        for split, count in (("train", 640), ("t10k", 100)):
            labels = bytes(i * 7 % 10 for i in range(count))
            pictures = b"".join(bytes(255 if y // 2 == label + 2 else 0 for y in range(28) for _ in range(28)) for label in labels)
            (self.folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + pictures)
            (self.folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)
        output = run("bench_digits", "--model", "linear", "--data", str(self.folder), "--csv", f"{self.folder}/a.csv")
        self.assertIn("IDX", output)
        (row,) = self.rows("a.csv")
        self.assertEqual(row["unit"], "accuracy")
        self.assertGreater(float(row["measured"]), 0.95, output)  # one guess in ten is right by chance


if __name__ == "__main__":
    unittest.main()
