"""check_readme.py: a README that lies must fail."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "check_readme.py"


def check(text, *flags):
    with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([sys.executable, SCRIPT, file.name, *flags], text=True, capture_output=True)
        return done.returncode, done.stdout + done.stderr


def sleeps(path, mark):
    try:
        return path.read_bytes().split(b"\0")[:2] == [b"sleep", mark.encode()]
    except OSError:
        return False


class CheckReadme(unittest.TestCase):
    def test_equal_output_passes(self):
        self.assertEqual(check("```console\n$ echo took 3.5 ms\ntook 4.25 ms\n```\n")[0], 0)

    def test_other_words_fail(self):
        code, text = check("```console\n$ echo took 3.5 ms\nlasted 3.5 ms\n```\n")
        self.assertEqual(code, 1)
        self.assertIn("lasted", text)

    def test_missing_line_fails(self):
        self.assertEqual(check("```console\n$ echo one\none\ntwo\n```\n")[0], 1)

    def test_order_matters(self):
        self.assertEqual(check("```console\n$ printf 'one\\ntwo\\n'\ntwo\none\n```\n")[0], 1)

    def test_dots_skip_lines(self):
        self.assertEqual(check("```console\n$ printf 'a\\nb\\nc\\n'\n...\nc\n```\n")[0], 0)
        self.assertEqual(check("```console\n$ printf 'a\\nb\\n'\n...\nc\n```\n")[0], 1)

    def test_exit_code(self):
        self.assertEqual(check("```console\n$ exit 3   # exit 3\n```\n")[0], 0)
        self.assertEqual(check("```console\n$ exit 3\n```\n")[0], 1)

    def test_scripts_that_nobody_runs_must_at_least_be_there_and_executable(self):
        run = "```sh\ntrue\n```\n"
        for text in ("`scripts/report.py --paper`", "```sh not-run: minutes\ncd . && scripts/sweep.py a.toml\n```", "`python scripts/results.py`", "see `common/comm`"):
            self.assertEqual(check(run + text)[0], 0, text)
        for text in ("`scripts/results.py`", "```sh not-run: minutes\ntrue && ./scripts/no_such.sh a\n```", "```sh\nscripts/launcher.py x # not run: minutes\n```"):
            code, output = check(run + text)
            self.assertEqual(code, 1, text)
            self.assertIn("not executable", output)

    def test_continued_line(self):
        self.assertEqual(check("```console\n$ echo a \\\n    b\na b\n```\n")[0], 0)

    def test_hanging_command_is_bounded_and_leaves_nobody_behind(self):
        mark = f"86{os.getpid()}"  # seconds to sleep, and a name to find it by
        # As mpirun does: the child has a session of its own, so that a signal to the group of its parent does not reach it.
        code, text = check(f"```console\n$ setsid sleep {mark} | cat\n```\n", "--timeout", "0.5")
        self.assertEqual(code, 1)
        self.assertIn("still running", text)
        left = [path for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if sleeps(path, mark)]
        self.assertEqual(left, [])

    def test_nothing_to_run_is_an_error(self):
        self.assertNotEqual(check("```\necho not run\n```\n")[0], 0)
        self.assertNotEqual(check("```sh\necho a   # not run: no reason\n```\n")[0], 0)

    def test_a_pipe_fails_with_its_first_part(self):
        self.assertEqual(check("```console\n$ false | cat\n```\n")[0], 1)
        self.assertEqual(check("```console\n$ (exit 65) | cat   # exit 65 with pipefail\n```\n")[0], 0)

    def test_an_unexpected_77_is_a_skip(self):
        code, text = check("```console\n$ echo 'manyranks: skipped (gpu): none here'; exit 77\nwhat a GPU prints\n```\n")
        self.assertEqual(code, 0)
        self.assertIn("SKIPPED: manyranks: skipped (gpu): none here", text)
        self.assertIn("0 failed, 1 skipped", text)
        self.assertEqual(check("```console\n$ exit 77   # exit 77\nnever printed\n```\n")[0], 1)

    def test_no_gpu_is_seen(self):
        self.assertEqual(check('```console\n$ echo "<${CUDA_VISIBLE_DEVICES-unset}>"\n<>\n```\n')[0], 0)


class Scripts(unittest.TestCase):
    """Blocks fenced as sh."""

    def test_they_are_run(self):
        self.assertEqual(check("```sh\ntrue\n```\n")[0], 0)
        code, text = check("```sh\ntrue\necho the last words; false\ntrue\n```\n")
        self.assertEqual(code, 1)
        self.assertIn("| the last words", text)
        self.assertEqual(check("```sh\nfalse | cat\n```\n")[0], 1)

    def test_variables_live_on_and_statements_may_have_several_lines(self):
        code, text = check("```sh\nword=good   # for later\nfor i in 1 2; do\n  test $word = good\ndone\ntest $word = \\\n  good\n```\n")
        self.assertEqual(code, 0, text)
        self.assertIn("3 commands run, 0 failed", text)

    def test_what_runs_in_the_background_counts(self):
        self.assertEqual(check("```sh\ntrue &\ntrue\n```\n")[0], 0)
        self.assertEqual(check("```sh\nfalse &   # the first shell\nsleep 0.1\n```\n")[0], 1)

    def test_a_mark_at_the_end_or_above_or_on_the_fence(self):
        for marked in ("exit 3   # a cluster; not run: needs Slurm\n", "# not run: needs Slurm\nexit 3\n", "for i in 1; do   # not run: needs Slurm\n  exit 3\ndone\n",
                       "exit \\\n  3   # not run: needs Slurm\n"):
            with self.subTest(marked=marked):
                code, text = check(f"```sh\n{marked}true\n```\n")
                self.assertEqual(code, 0, text)
                self.assertIn("not run: needs Slurm", text)
                self.assertIn("1 commands run, 0 failed, 0 skipped, 1 not run (marked)", text)
        code, text = check("```sh not-run: needs Slurm\nexit 3\nexit 4\n```\n```console\n$ true\n```\n")
        self.assertEqual(code, 0, text)
        self.assertIn("1 commands run, 0 failed, 0 skipped, 2 not run (marked)", text)

    def test_a_mark_holds_for_one_command_and_wants_a_reason(self):
        self.assertEqual(check("```sh\n# not run: needs Slurm\ntrue\nexit 3\n```\n")[0], 1)
        self.assertEqual(check("```sh\nexit 3   # not run\n```\n")[0], 1)
        self.assertEqual(check("```sh\nexit 3   # not run:\n```\n")[0], 1)

    def test_what_bash_cannot_read_fails(self):
        self.assertEqual(check("```sh\nfor i in 1 2; do\n```\n")[0], 1)

    def test_a_block_that_is_never_closed(self):
        self.assertNotEqual(check("```console\n$ true\n```\n```sh\ntrue\n")[0], 0)


if __name__ == "__main__":
    unittest.main()
