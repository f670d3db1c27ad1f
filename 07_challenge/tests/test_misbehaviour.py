"""Whatever a learner's file does, it costs only its own points, and the grader ends in time with nothing left running."""
import pathlib
import tempfile
import time
import unittest
import unittest.mock

import misbehaving
import support
from support import catalog, court, grading
import entry
import processes
import ranks

RING = catalog.read(catalog.EXERCISES / "02_ring")


def ours():
    """Processes of the judge that are running."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(support.BUILD / "07_challenge" / "judge").encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass
    return found


class Misbehaviour(unittest.TestCase):
    def setUp(self):
        self.court = support.new_court()
        self.before = set(ours())

    def tearDown(self):
        deadline = time.monotonic() + 5
        while set(ours()) - self.before and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(set(ours()) - self.before, set(), "processes were left behind")

    def fails(self, text, key, words, ranks=(2,)):
        result = grading.grade(RING, text, self.court, ranks=ranks)
        first = next(v for v in result.verdicts if v.status == "failed")
        self.assertEqual((first.check.name, first.key), ("result", key), first.seen)
        self.assertIn(words, first.seen)
        self.assertIn(RING.checks[0].hint, first.hint)
        self.assertEqual(result.points, 0)
        return result

    def test_a_file_that_does_not_compile(self):
        result = grading.grade(RING, misbehaving.DOES_NOT_COMPILE, self.court)
        self.assertEqual((result.status, result.points), ("does not compile", 0))
        self.assertIn("02_ring.cpp:8", result.compiler)
        self.assertIn("error", result.compiler)

    def test_a_hang_between_ranks(self):
        began = time.monotonic()
        self.fails(misbehaving.HANGS_IN_RECV, "hang", "recv")
        self.assertLess(time.monotonic() - began, court.RUN_SECONDS)  # the ranks' own watchdog, not the grader's limit

    def test_an_endless_loop_on_one_rank(self):
        with unittest.mock.patch.object(court, "RUN_SECONDS", 4):
            result = self.fails(misbehaving.LOOPS_FOR_EVER, "hang", "ended by the grader", ranks=(1, 2))
        self.assertIn("not run on 2 ranks", result.notes[0])

    def test_a_crash(self):
        self.fails(misbehaving.CRASHES, "crash", "SIGSEGV")
        self.fails(misbehaving.ABORTS, "crash", "SIGABRT", ranks=(1,))

    def test_a_program_that_leaves(self):
        self.fails(misbehaving.LEAVES, "crash", "ended by itself (exit 0)", ranks=(1,))

    def test_an_exception_says_what_it_said(self):
        self.fails(misbehaving.THROWS, "stopped", "no idea")

    def test_ranks_that_make_different_calls(self):
        self.fails(misbehaving.CALLS_ANOTHER_COLLECTIVE, "disagree", "broadcast")

    def test_megabytes_of_output_are_cut(self):
        result = self.fails(misbehaving.PRINTS_MEGABYTES, "", "my part")
        self.assertLess(len(result.output), processes.KEPT_BYTES)

    def test_prints_cannot_pass_for_a_report(self):
        self.fails(misbehaving.FAKES_A_REPORT, "", "my part")

    def test_endless_memory(self):
        with unittest.mock.patch.object(self.court.toolchain, "limits", lambda cuda: processes.Limits(heap_bytes=1 << 30)):
            self.fails(misbehaving.TAKES_ALL_MEMORY, "stopped", "bad_alloc", ranks=(1,))

    def test_a_child_that_stays_is_ended(self):
        self.fails(misbehaving.LEAVES_A_CHILD, "", "my part")

    def test_a_child_in_a_session_of_its_own_is_ended_too(self):
        grading.grade(RING, misbehaving.HIDES_A_CHILD, self.court, ranks=(1,))
        self.assertEqual(set(ours()) - self.before, set())  # at once: the mark is in its environment

    def test_a_file_without_end(self):
        with unittest.mock.patch.object(self.court.toolchain, "limits", lambda cuda: processes.Limits(file_bytes=96 << 20)):  # the ranks' shared segment is a file, too
            self.fails(misbehaving.FILLS_THE_DISK, "crash", "SIGXFSZ", ranks=(1,))

    def test_any_exception_and_a_call_that_is_refused_are_the_learners(self):
        self.fails(misbehaving.THROWS_A_NUMBER, "stopped", "no std::exception", ranks=(1,))
        self.fails(misbehaving.WRONG_SIZES, "stopped", "all_gather: ")

    def test_a_helper_that_is_nowhere_is_the_linkers(self):
        result = grading.grade(RING, misbehaving.UNDEFINED_HELPER, self.court, ranks=(1,))
        self.assertEqual(result.status, "does not compile")
        self.assertIn("helper()", result.compiler)

    def test_a_crash_behind_a_failed_check_is_told(self):
        result = grading.grade(RING, misbehaving.CRASHES_LATER, self.court, ranks=(2,))
        self.assertEqual([(v.check.name, v.key) for v in result.verdicts if v.status == "failed"], [("messages", ""), ("bytes", ""), ("hidden", "crash")])

    def test_a_wiped_report_costs_its_own_points(self):
        result = grading.grade(RING, misbehaving.WIPES_THE_REPORT, self.court, ranks=(1,))
        self.assertEqual((result.points, result.verdicts[0].key), (0, "crash"))
        self.assertIn("nothing is left of the report", result.verdicts[0].seen)

    def test_a_file_without_the_function(self):
        result = grading.grade(RING, misbehaving.WITHOUT_THE_FUNCTION, self.court, ranks=(1,))
        self.assertIn("ring_reduce_scatter() is not in the file", result.verdicts[0].seen)

    def test_a_deleted_folder_is_put_back(self):
        with tempfile.TemporaryDirectory() as folder:
            desk = pathlib.Path(folder) / "challenge"
            desk.mkdir()
            (desk / "03_zero1.cpp").write_text("an evening's work")
            result = grading.grade(RING, misbehaving.deletes(desk), self.court, desk, ranks=(1, 2))
            self.assertEqual((desk / "03_zero1.cpp").read_text(), "an evening's work")
            self.assertIn("put back", result.notes[0])
            self.assertEqual(next(v for v in result.verdicts if v.status == "failed").where, 2)  # judged all the same

    def test_spoiled_folders_are_put_back(self):
        for spoil in (misbehaving.spoils, misbehaving.becomes_a_file):
            with self.subTest(spoil.__name__), tempfile.TemporaryDirectory() as folder:
                desk = pathlib.Path(folder) / "challenge"
                (desk / "newer").mkdir(parents=True)
                files = {"02_ring.cpp": "mine", "03_zero1.cpp": "an evening's work", "06_balance.cpp": "another", "newer/02_ring.cpp": "new"}
                for name, text in files.items():
                    (desk / name).write_text(text)
                result = grading.grade(RING, spoil(desk), self.court, desk, ranks=(1,))
                self.assertEqual({name: (desk / name).read_text() for name in files}, files)
                self.assertFalse((desk / "06_balance.cpp").is_symlink())
                self.assertIn("put back", result.notes[0])

    def test_in_one_start_the_others_keep_their_points(self):
        """The judge runs several files in one start here: each bad one stops it, and those around it are judged as if alone."""
        good = (RING, RING.solution)
        answers = {"first": good, "crash": (RING, misbehaving.CRASHES), "second": good, "throws": (RING, misbehaving.THROWS), "third": good}
        results = support.judge_batch(answers, lambda label: (2,))
        self.assertEqual({label: result.points for label, result in results.items()}, {"first": 10, "crash": 0, "second": 10, "throws": 0, "third": 10})


class Machine(unittest.TestCase):
    """What is wrong with the machine is nobody's fault, and costs nobody anything."""

    def grade(self, mpiexec, ranks=(2,)):
        judge = support.new_court()
        judge.starter.mpiexec = mpiexec
        return grading.grade(RING, RING.solution, judge, ranks=ranks)

    def test_no_launcher(self):
        with self.assertRaisesRegex(entry.Broken, "does not start on 2 ranks .exit 127.: /nowhere/mpiexec cannot be started"):
            self.grade("/nowhere/mpiexec")

    def test_a_launcher_that_refuses(self):
        with self.assertRaisesRegex(entry.Broken, "does not start on 2 ranks .exit 1"):
            self.grade("false")

    def test_a_launcher_that_starts_other_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            alone = pathlib.Path(folder) / "mpiexec"
            alone.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')  # -n 2, forgotten
            alone.chmod(0o755)
            with self.assertRaisesRegex(entry.Broken, "2 ranks were asked for, and 1 came"):
                self.grade(str(alone))

    def test_limits_only_where_they_can_be(self):
        toolchain = support.new_court().toolchain
        self.assertIsNone(toolchain.limits(cuda=True).heap_bytes)
        toolchain.settings["sanitize"] = "address"
        self.assertIsNone(toolchain.limits().heap_bytes)
        toolchain.settings["sanitize"] = ""
        self.assertEqual(toolchain.limits().heap_bytes, 2 << 30)

    def test_how_ranks_are_started(self):
        starter = ranks.Starter("/opt/mpi/bin/mpiexec")
        starter.machine.slurm_tasks = 0
        self.assertEqual(starter.command(4, ["judge"]), ["/opt/mpi/bin/mpiexec", "-n", "4", "judge"])
        self.assertEqual(starter.environment()["OMPI_MCA_rmaps_base_oversubscribe"], "1")
        starter.machine.slurm_tasks = 1
        self.assertEqual(starter.command(4, ["judge"])[:5], ["srun", "-N1", "-n", "4", "--overcommit"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
