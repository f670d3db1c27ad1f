"""tour.sh: every core lesson is a stop, each stop tells before and after, and rows of two changed trees never meet."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent
# As the chapters mark them: "[name](name.cpp) (core" or "[name.cpp](name.cpp) | 10, core |".
CORE = re.compile(r"\[(\d\d_\w+)(?:\.cpp)?\]\(\1\.cpp\)(?: \(core\b| \| \d+, core \|)")


def stops():
    listed = subprocess.run([SCRIPTS / "tour.sh", "--list"], text=True, stdout=subprocess.PIPE, check=True).stdout
    return [[part.strip() for part in line.split(" | ")] for line in listed.splitlines()]


class Stops(unittest.TestCase):
    def test_the_core_lessons_of_the_chapters_are_those_of_the_tour(self):
        readmes = sorted(SCRIPTS.parent.glob("[0-9][0-9]_*/README.md"))
        core = {f"{readme.parent.name}/{name}" for readme in readmes for name in CORE.findall(readme.read_text())}
        self.assertGreater(len(core), 20)
        self.assertEqual({stop[0].split()[2] for stop in stops()}, core)

    def test_they_come_chapter_by_chapter_and_exist(self):
        programs = [stop[0].split()[2] for stop in stops()]
        self.assertEqual(programs, sorted(programs))
        for program in programs:
            self.assertTrue((SCRIPTS.parent / f"{program}.cpp").exists(), program)

    def test_each_says_what_to_see_and_what_was_seen(self):
        for stop in stops():
            self.assertEqual(len(stop), 3, stop)
            self.assertTrue(all(text.endswith(".") and len(text) > 20 for text in stop[1:]), stop)
        self.assertEqual(len({stop[2] for stop in stops()}), len(stops()))


class Tour(unittest.TestCase):
    """The real tour.sh among stand-ins for what it calls, in a repository of its own."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        (self.root / "scripts").mkdir()
        shutil.copy(SCRIPTS / "tour.sh", self.root / "scripts" / "tour.sh")
        self.program("scripts/setup.sh", "true")
        self.program("bin/python", 'echo "python $*"')
        self.program("build/common/doctor", "true")
        (self.root / ".gitignore").write_text("bin\nbuild\nresults\n")
        (self.root / "scripts" / "common.sh").write_text('cd "$(dirname "${BASH_SOURCE[0]}")/.."\nsay() { echo "$@"; }\nconfigure_and_build() { :; }\nranks() { echo "RUN $*"; }\n')
        self.git("init", "-q")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "first")

    def program(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def git(self, *words):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false", *words], cwd=self.root, check=True, capture_output=True)

    def tour(self, *words):
        environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY") and not name.startswith("GIT_")}
        environment["PATH"] = f"{self.root / 'bin'}:{environment['PATH']}"
        return subprocess.run([self.root / "scripts" / "tour.sh", *words], env=environment, text=True, stdout=subprocess.PIPE, check=True).stdout

    def test_what_you_saw_stands_below_the_run(self):
        lines = self.tour().splitlines()
        runs = [i for i, line in enumerate(lines) if line.startswith("RUN ")]
        self.assertEqual(len(runs), len(stops()))
        for i, (_, about, saw) in zip(runs, stops()):
            self.assertEqual((lines[i - 2], lines[i + 1]), (about, f"What you saw: {saw}"))

    def test_a_clean_tree_goes_on_where_it_stopped_and_a_changed_one_begins_anew(self):
        self.assertRegex(self.tour(), r"python scripts/sweep.py --quick --results results/tour-\w+\n")
        with (self.root / "scripts" / "common.sh").open("a") as file:
            file.write("# changed\n")
        self.assertRegex(self.tour(), r"python scripts/sweep.py --quick --results results/tour-\w+-dirty --fresh\n")

    def test_one_chapter_has_no_sweep(self):
        said = self.tour("--chapter", "03")
        self.assertEqual(said.count("RUN "), sum(stop[0].startswith("03") for stop in stops()))
        self.assertIn("RUN 2 build/03_data_parallel/11_train --quick --epochs 1 --model convnet", said)
        self.assertNotIn("sweep.py", said)


if __name__ == "__main__":
    unittest.main()
