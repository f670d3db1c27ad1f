"""Of every exercise: the solution gets all points, the untouched skeleton gets none and is told why, typical wrong answers get the hint that is meant for them."""
import unittest

import support
from support import catalog
import skeleton

EXERCISES = catalog.load()


def failed(result):
    return [v for v in result.verdicts if v.status == "failed"]


class Solutions(unittest.TestCase):
    def test_every_solution_gets_all_points(self):
        results = support.judge_batch({e.name: (e, e.solution) for e in EXERCISES})
        for name, result in results.items():
            with self.subTest(name):
                self.assertEqual([(v.check.name, v.status, v.seen) for v in result.verdicts if v.status != "passed"], [])
                self.assertEqual(result.points, result.exercise.points)
                print(f"  {name}: {result.points} of {result.exercise.points}")

    def test_a_rank_that_is_alone_need_not_talk(self):
        e = catalog.read(catalog.EXERCISES / "04_place_all_reduce")
        text = e.solution.replace("ranks.all_reduce(output.data);", "if (ranks.size() > 1) ranks.all_reduce(output.data);")
        self.assertNotEqual(text, e.solution)
        result = support.judge_batch({"alone": (e, text)}, lambda label: [1])["alone"]
        self.assertEqual([(v.check.name, v.seen) for v in result.verdicts if v.status != "passed"], [])


class Skeletons(unittest.TestCase):
    def test_every_skeleton_fails_the_named_checks_with_their_hints_and_gets_no_points(self):
        """`skeleton` in exercise.toml names them, all of them. A hang or an exception only where it is named, a crash nowhere."""
        results = support.judge_batch({e.name: (e, skeleton.learners_copy(e)) for e in EXERCISES})
        for name, result in results.items():
            with self.subTest(name):
                e, faults = result.exercise, failed(result)
                self.assertEqual(result.points, 0, [(v.check.name, v.status) for v in result.verdicts])
                self.assertEqual([f"{v.check.name} {v.key}".strip() for v in faults], e.skeleton, [v.seen for v in faults])
                for v in faults:
                    self.assertNotIn(v.key, ("crash", "broken", "disagree"))
                    self.assertEqual((v.hint, v.more), e.hints[v.key] if v.key else (v.check.hint, v.check.more))
                    self.assertGreater(len(v.seen), 10)
                print(f"  {name}: fails {', '.join(e.skeleton)}: {faults[0].seen[:100]}")

    def test_what_is_named_exists(self):
        for e in EXERCISES:
            self.assertTrue(e.skeleton, e.name)
            for check, *hint in map(str.split, e.skeleton):
                self.assertIn(check, [c.name for c in e.checks], e.name)
                self.assertTrue(not hint or hint[0] in e.hints, e.name)


class WrongAnswers(unittest.TestCase):
    def test_every_check_is_failed_by_some_answer(self):
        """A check that nothing fails gives points away. What the skeleton fails is seen above; here only what the wrong answers say."""
        for e in EXERCISES:
            expected = {skeleton.wrong_answer(path).expect[0] for path in e.wrong_answers()}
            unseen = [check.name for check in e.checks if check.name not in expected]
            self.assertLessEqual(len(unseen), 1, f"{e.name}: no wrong answer fails {unseen}")  # the one that the skeleton fails

    def test_each_gets_the_hint_that_is_meant_for_it(self):
        answers, wrong = {}, {}
        for e in EXERCISES:
            self.assertGreaterEqual(len(e.wrong_answers()), 2, e.name)
            for path in e.wrong_answers():
                label = f"{e.name}/{path.stem}"
                wrong[label] = skeleton.wrong_answer(path)
                answers[label] = (e, wrong[label].text(e.solution))
        for label, result in support.judge_batch(answers, lambda label: wrong[label].ranks or [2]).items():
            with self.subTest(label):
                check, key = (wrong[label].expect + [""])[:2]
                faults = failed(result)
                self.assertTrue(faults, "it passes every check")
                first = faults[0]
                self.assertEqual(first.check.name, check, first.seen)
                if key:
                    self.assertEqual(first.key, key, first.seen)
                    self.assertEqual(first.hint, result.exercise.hints[key][0])
                else:
                    self.assertIn(first.check.hint, first.hint)
                print(f"  {label}: {check} {key}: {first.seen[:100]}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
