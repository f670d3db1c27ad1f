"""The learner's copies: what is cut, what stays, and that a learner's own work is never overwritten. No build needed."""
import pathlib
import re
import tempfile
import unittest

import support  # noqa: F401  (puts the grader on the path)
import catalog
import skeleton
from progress import Progress

SOLUTION = """int f() {
  // <<< todo
  // Return the answer.
  // Two lines of this.
  // <<< until then
  // int wrong = 0;
  //   return wrong;
  // <<< solution
  return 42;
  // >>>
}
"""
SKELETON = """int f() {
  // TODO: Return the answer.
  // Two lines of this.
  int wrong = 0;
    return wrong;
  // (until here)
}
"""


class Fake:
    name, solution = "99_fake", SOLUTION


class Regions(unittest.TestCase):
    def test_the_solution_is_cut_and_the_rest_stays(self):
        self.assertEqual(skeleton.skeleton(SOLUTION), SKELETON)

    def test_another_answer_takes_the_place_of_the_region(self):
        self.assertEqual(skeleton.with_answers(SOLUTION, [["  return 7;"]]), "int f() {\n  return 7;\n}\n")
        with self.assertRaises(skeleton.Malformed):
            skeleton.with_answers(SOLUTION, [[], []])

    def test_a_wrong_answer_outside_of_the_regions(self):
        with tempfile.TemporaryDirectory() as room:
            file = pathlib.Path(room) / "wrong_1.inc"
            file.write_text("// expect: order\n// instead of: int f() {\n// put: int f() { return 1;\n// Why.\n")
            wrong = skeleton.wrong_answer(file)
            self.assertEqual((wrong.expect, wrong.ranks, wrong.text(SOLUTION)), (["order"], [], SOLUTION.replace("int f() {", "int f() { return 1;")))
            with self.assertRaises(skeleton.Malformed):
                wrong.text("nothing of it")

    def test_regions_that_are_not_closed_or_in_disorder_are_refused(self):
        for bad in (SOLUTION.replace("  // >>>\n", ""), SOLUTION.replace("  // <<< until then\n", ""), SOLUTION.replace("<<< todo", "<<< tudo"),
                    SOLUTION.replace("  // <<< todo\n", ""), "int f() { return 42; }\n"):
            with self.assertRaises(skeleton.Malformed):
                skeleton.skeleton(bad)

    def test_no_line_of_a_solution_is_left_in_any_skeleton(self):
        for exercise in catalog.load():
            parts = skeleton.regions(exercise.solution)
            given = {line.strip() for part in parts for line in ([part] if isinstance(part, str) else [re.sub("// ?", "", line, count=1) for line in part["until then"]])}
            cut = {line.strip() for part in parts if isinstance(part, dict) for line in part["solution"]} - given
            copy = {line.strip() for line in skeleton.learners_copy(exercise).splitlines()}
            self.assertTrue(cut, exercise.name)
            self.assertEqual(cut & copy, set(), exercise.name)


class Catalog(unittest.TestCase):
    def test_twelve_exercises_two_for_each_chapter_ten_points_each(self):
        exercises = catalog.load()
        self.assertEqual([e.name[:2] for e in exercises], [f"0{c}" for c in range(1, 7) for _ in range(2)])
        for e in exercises:
            self.assertEqual(e.points, 10, e.name)
            self.assertLessEqual(len(e.solution.splitlines()), 120, e.name)

    def test_the_lessons_that_are_named_exist(self):
        for e in catalog.load():
            self.assertTrue((catalog.ROOT / e.lesson).exists(), e.lesson)
            self.assertIn(f"Lesson: {e.lesson}", e.solution)

    def test_the_readmes_map_is_theirs(self):
        """One row each: name, minutes, what it needs, the lesson."""
        rows = {}
        for line in (catalog.CHALLENGE / "README.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if re.fullmatch(r"0[1-6]_\w+", cells[0]):
                rows[cells[0]] = cells
        for e in catalog.load():
            name, minutes, _, needs, read = rows.pop(e.name)
            self.assertEqual((int(minutes), needs), (e.minutes, e.needs), name)
            self.assertIn(f"(../{e.lesson})", read, name)
        self.assertEqual(rows, {})

    def test_names(self):
        exercises = catalog.load()
        self.assertEqual([e.name for e in catalog.pick(["ring", "build/challenge/03_zero1.cpp", "02_ring"], exercises)], ["02_ring", "03_zero1"])
        for bad in ("nothing", "0", ""):
            with self.assertRaises(catalog.Unknown):
                catalog.pick([bad], exercises)


class Desk(unittest.TestCase):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.desk = skeleton.Desk(pathlib.Path(self.room.name) / "challenge")
        self.fake = Fake()
        self.assertEqual(self.desk.prepare([self.fake]), [])
        self.file = self.desk.file(self.fake)

    def test_what_the_learner_changed_is_kept(self):
        self.file.write_text("my work")
        self.assertEqual(self.desk.prepare([self.fake]), [])
        self.assertEqual(self.file.read_text(), "my work")
        self.assertFalse(self.desk.untouched(self.fake))

    def test_a_changed_template_is_told_once_and_put_aside(self):
        self.file.write_text("my work")
        self.fake.solution = SOLUTION.replace("Two lines", "Three lines")
        notes = self.desk.prepare([self.fake])
        self.assertIn("has changed since you began", notes[0])
        self.assertEqual(self.file.read_text(), "my work")
        self.assertIn("Three lines", (self.desk.folder / "newer" / "99_fake.cpp").read_text())
        self.assertEqual(self.desk.prepare([self.fake]), [])

    def test_an_untouched_copy_follows_its_template(self):
        self.fake.solution = SOLUTION.replace("Two lines", "Three lines")
        self.assertEqual(self.desk.prepare([self.fake]), [])
        self.assertIn("Three lines", self.file.read_text())
        self.assertTrue(self.desk.untouched(self.fake))

    def test_work_is_kept_when_the_ledger_is_gone(self):
        self.file.write_text("my work")
        self.desk.ledger.unlink()
        self.desk.prepare([self.fake])
        self.assertEqual(self.file.read_text(), "my work")

    def test_a_deleted_file_comes_back(self):
        self.file.unlink()
        self.assertIn("was gone", self.desk.prepare([self.fake])[0])
        self.assertEqual(self.file.read_text(), skeleton.learners_copy(self.fake))


class History(unittest.TestCase):
    def test_points_over_time(self):
        with tempfile.TemporaryDirectory() as room:
            file = pathlib.Path(room) / "progress.csv"
            file.write_text("date,exercise,points,of,status,seed\nx,a,0,10,begun,1\nx,a,0,10,begun,1\nx,b,3,10,begun,1\nx,a,7,10,begun,1\ngarbage\n")
            self.assertEqual(Progress(file).history("a"), [0, 7])


if __name__ == "__main__":
    unittest.main(verbosity=2)
