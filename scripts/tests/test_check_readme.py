"""check_readme.py: a README that lies must fail."""
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

    def test_continued_line(self):
        self.assertEqual(check("```console\n$ echo a \\\n    b\na b\n```\n")[0], 0)

    def test_hanging_command_is_bounded(self):
        code, text = check("```console\n$ sleep 60\n```\n", "--timeout", "0.5")
        self.assertEqual(code, 1)
        self.assertIn("still running", text)

    def test_nothing_to_run_is_an_error(self):
        self.assertNotEqual(check("```sh\n$ echo not run\n```\n")[0], 0)


if __name__ == "__main__":
    unittest.main()
