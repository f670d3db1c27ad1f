"""./scripts/grade.sh as a learner and a teacher meet it: nothing done, a wrong name, no build, from another folder, Ctrl-C, a class."""
import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import misbehaving
import support
from support import catalog
import skeleton

GRADE = support.ROOT / "scripts" / "grade.sh"
RING = catalog.read(catalog.EXERCISES / "02_ring")


class Script(unittest.TestCase):
    def setUp(self):
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.room = pathlib.Path(room.name)
        # A build folder of our own around the real judge: the learner's files of this machine are not touched.
        self.build = self.room / "build"
        self.build.mkdir()
        (self.build / "07_challenge").symlink_to(support.BUILD / "07_challenge")
        self.desk = self.build / "challenge"

    def grade(self, *words, cwd=None, build=None):
        return subprocess.run([GRADE, "--build", str(build or self.build), *words], cwd=cwd or self.room, text=True, capture_output=True, timeout=120)

    def test_nothing_done(self):
        ended = self.grade()
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertEqual(ended.stdout.count("not started"), 12)
        self.assertIn("0 of 120", ended.stdout)
        self.assertIn("Begin with", ended.stdout)
        self.assertEqual(len(list(self.desk.glob("*.cpp"))), 12)

    def test_a_learner_gets_on(self):
        self.grade("--prepare")
        file = self.desk / "02_ring.cpp"
        file.write_text(skeleton.wrong_answer(RING.folder / "wrong_1.inc").text(RING.solution))
        first = self.grade("ring", "--hint", cwd=self.desk)  # from the learner's folder
        self.assertEqual(first.returncode, 1, first.stderr)
        self.assertIn(RING.hints["owner"][0].split(":")[0], first.stdout)
        self.assertIn("more: " + RING.hints["owner"][1][:30], first.stdout)
        file.write_text(RING.solution)
        second = self.grade("02_ring.cpp", "--seed", "5", cwd=self.desk)
        self.assertEqual(second.returncode, 0, second.stdout + second.stderr)
        self.assertIn("0 > 10   (+10)", second.stdout)
        self.assertIn("All points", second.stdout)
        with open(self.desk / "progress.csv", newline="") as opened:
            self.assertEqual([(row["exercise"], row["points"]) for row in csv.DictReader(opened)], [("02_ring", "0"), ("02_ring", "10")])

    def test_bad_files_beside_a_good_one(self):
        """One deletes the folder, one does not compile, one crashes: the one that is right gets its points, and everybody's file is still there."""
        self.grade("--prepare")
        good = catalog.read(catalog.EXERCISES / "04_place_all_reduce")
        files = {"01_fused_step": misbehaving.DOES_NOT_COMPILE, "02_ring": misbehaving.deletes(self.desk), "03_averaging": misbehaving.crashes("03_averaging"),
                 "04_place_all_reduce": good.solution}
        for name, text in files.items():
            (self.desk / f"{name}.cpp").write_text(text)
        ended = self.grade()
        self.assertEqual(ended.returncode, 1, ended.stderr)
        for line in ("01_fused_step 0 of 10 does not compile", "02_ring 0 of 10 begun", "03_averaging 0 of 10 begun", "04_place_all_reduce 10 of 10 done", "all 10 of 120"):
            self.assertIn(line, " ".join(ended.stdout.split()))
        self.assertIn("they were put back", " ".join(ended.stdout.split()))
        self.assertEqual({name: (self.desk / f"{name}.cpp").read_text() for name in files}, files)

    def test_a_wrong_name_or_flag(self):
        ended = self.grade("rung")
        self.assertEqual(ended.returncode, 64)
        self.assertIn("'rung' is no exercise", ended.stderr)
        self.assertIn("02_ring", ended.stderr)
        self.assertEqual(self.grade("--nonsense").returncode, 64)
        self.assertEqual(self.grade("--class", "nowhere").returncode, 64)
        self.assertEqual(self.grade("ring", "--seed", "-1").returncode, 64)

    def test_a_file_that_is_none(self):
        """A folder in the place of one exercise: the others are graded, and it is left alone."""
        (self.desk / "02_ring.cpp").mkdir(parents=True)
        ended = self.grade()
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertIn("02_ring 0 of 10 cannot be read", " ".join(ended.stdout.split()))
        self.assertEqual(ended.stdout.count("not started"), 11)
        self.assertTrue((self.desk / "02_ring.cpp").is_dir())

    def test_no_launcher_costs_no_points(self):
        """Ranks cannot be started: that is said, with exit 69, and the learner's history knows nothing of it."""
        shutil.rmtree(self.build)
        (self.build / "07_challenge").mkdir(parents=True)
        (self.build / "07_challenge" / "judge").symlink_to(support.BUILD / "07_challenge" / "judge")
        settings = json.loads((support.BUILD / "07_challenge" / "toolchain.json").read_text())
        (self.build / "07_challenge" / "toolchain.json").write_text(json.dumps({**settings, "mpiexec": "/nowhere/mpiexec"}))
        self.grade("--prepare")
        (self.desk / "02_ring.cpp").write_text(RING.solution)
        ended = self.grade("ring")
        self.assertEqual(ended.returncode, 69, ended.stdout + ended.stderr)
        self.assertIn("/nowhere/mpiexec cannot be started", ended.stderr)
        self.assertFalse((self.desk / "progress.csv").exists())

    def test_before_a_build(self):
        for build in (self.room / "none", self.room):
            ended = self.grade(build=build)
            self.assertEqual(ended.returncode, 69)
            self.assertIn("cmake --build build --target challenge", ended.stderr)

    def test_interrupted(self):
        self.grade("--prepare")
        (self.desk / "02_ring.cpp").write_text(misbehaving.HANGS_IN_RECV)
        process = subprocess.Popen([GRADE, "--build", str(self.build), "ring"], cwd=self.room, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        judge = str(self.build / "07_challenge" / "judge").encode()
        running = lambda: [p for p in pathlib.Path("/proc").glob("[0-9]*") if judge in self.words(p)]  # noqa: E731
        deadline = time.monotonic() + 30
        while len(running()) < 3 and time.monotonic() < deadline:  # mpirun and two ranks, which wait for each other
            time.sleep(0.02)
        self.assertGreaterEqual(len(running()), 3)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130)
        self.assertIn("interrupted", said)
        self.assertEqual(running(), [])

    @staticmethod
    def words(process):
        try:
            return (process / "cmdline").read_bytes()
        except OSError:
            return b""

    def test_a_class(self):
        for student, text in {"ada": RING.solution, "bob": misbehaving.DOES_NOT_COMPILE, "eve": skeleton.learners_copy(RING), "zoe": None}.items():
            folder = self.room / "class" / student / "handed_in"
            folder.mkdir(parents=True)
            if text:
                (folder / "02_ring.cpp").write_text(text)
        ended = self.grade("ring", "--class", "class", "--csv", "out.csv")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        with open(self.room / "out.csv", newline="") as opened:
            rows = {row["student"]: row for row in csv.DictReader(opened)}
        self.assertEqual({name: row["points"] for name, row in rows.items()}, {"ada": "10", "bob": "0", "eve": "0", "zoe": "0"})
        self.assertIn("does not compile", rows["bob"]["remarks"])
        self.assertIn("missing", rows["zoe"]["remarks"])
        self.assertEqual(sorted(os.listdir(self.room / "class" / "ada")), ["handed_in"])

    def test_a_student_who_misbehaves(self):
        """One gives marks and leaves a child, one hands in what cannot be read, one ten gigabytes: the last in the list gets all points."""
        table = self.room / "out.csv"
        for student in ("aki", "ben", "cem", "zoe"):
            (self.room / "class" / student).mkdir(parents=True)
        file = lambda student: self.room / "class" / student / "02_ring.cpp"  # noqa: E731
        file("aki").write_text(misbehaving.writes(table))
        file("ben").symlink_to("/proc/self/mem")  # a file, and reading it fails, also for root
        with open(file("cem"), "wb") as opened:
            opened.truncate(10 << 30)
        file("zoe").write_text(RING.solution)
        ended = self.grade("ring", "--class", "class", "--csv", "out.csv")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        with open(table, newline="") as opened:
            rows = {row["student"]: row for row in csv.DictReader(opened)}
        self.assertEqual({name: row["points"] for name, row in rows.items()}, {"aki": "0", "ben": "0", "cem": "0", "zoe": "10"})
        for student in ("ben", "cem"):
            self.assertIn("cannot be read", rows[student]["remarks"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
